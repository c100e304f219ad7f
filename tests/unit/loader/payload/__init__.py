"""Unit tests of `mainstem_loader.payload`. A package, because other folders have test modules of the
same names.
"""
