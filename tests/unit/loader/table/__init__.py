"""Unit tests of `mainstem_loader.table`. A package, because other folders have test modules of the
same names.
"""
