"""Unit tests of the loader. A package, because other folders have test modules of the same names."""
