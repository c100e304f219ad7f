"""The loader: topics of any Kafka-protocol broker into Delta tables, and questions to those tables.

`ranges` decides what a run reads, `tasks` reads it (`fetch`, `decode`, `payload`) and writes Parquet
(`day_files`), `warehouse` makes data and offsets visible in one commit, `load_topic` is the job from end to
end, `query` asks the tables. Nothing here knows the broker's or the command's code, and only `executors`
knows Spark.
"""
