"""Makes PySpark find the format `mainstem` by itself.

A session of PySpark looks for installed packages whose names begin with `pyspark_`, and registers the class
`DefaultSource` of each. Nothing else belongs here.
"""

from mainstem_loader.spark.source.read import MainstemDataSource as DefaultSource

__all__ = ["DefaultSource"]
