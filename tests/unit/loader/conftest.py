"""Settings for all unit tests of the loader."""

from __future__ import annotations

from hypothesis import settings

# A busy machine is no failure; tests are bounded by pytest's timeout.
settings.register_profile("patient", deadline=None)
settings.load_profile("patient")
