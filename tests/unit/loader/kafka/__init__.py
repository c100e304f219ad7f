"""Unit tests of `mainstem_loader.kafka`. A package, because other folders have test modules of the
same names.
"""
