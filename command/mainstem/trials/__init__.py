"""Measurements and checks of a running cluster: the logic of `mainstem verify` and `mainstem bench`."""
