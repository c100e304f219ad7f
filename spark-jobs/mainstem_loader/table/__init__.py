"""Delta tables in a warehouse: Parquet files, folders, commits with offsets, dead letters and SQL.
Knows nothing of brokers or Spark.
"""
