"""Unit tests of `mainstem_loader.resident`. A package, because other folders have test modules of the same
names.
"""
