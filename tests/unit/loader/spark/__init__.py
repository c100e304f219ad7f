"""Unit tests of `mainstem_loader.spark`. A package, because other folders have test modules of the
same names.
"""
