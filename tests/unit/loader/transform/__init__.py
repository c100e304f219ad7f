"""Unit tests of `mainstem_loader.transform`. A package, because other folders have test modules of the same
names.
"""
