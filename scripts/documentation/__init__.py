"""Builds the documentation's site: `python -m scripts.documentation [OUTPUT]`, which `make docs` runs.

Belongs here: collecting the pages, the reference pages that are made from the code, and the run of Sphinx.
The pages themselves are in `docs/`; Sphinx's settings are `docs/conf.py`.
"""
