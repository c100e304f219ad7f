"""Topics as DataFrames: the PySpark data source `mainstem`, for batch and streaming reads and writes.

`options` and `offsets` decide and are pure; `topics` asks brokers; `rows` makes Spark's columns of decoded
records;
`read` and `write` are the classes that PySpark calls, and the only ones that import it. Records are fetched
and decoded by `mainstem_loader.kafka`, as in loads.

Options, columns and offsets are those of Spark's own Kafka connector where it has them, so that a query
changes its format and little else.
"""
