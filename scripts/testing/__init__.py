"""The test runs of `make test` and `make trials`: every part is run, failed tests are repeated alone, and the
end of the output says what failed.

`parts` says what the runs consist of, `pytest_record` is the pytest plugin that writes what became of each
test, `verdict` decides from those records, and `__main__` runs the programs.
"""
