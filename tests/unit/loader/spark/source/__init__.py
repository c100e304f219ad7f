"""Unit tests of `mainstem_loader.spark.source`."""
