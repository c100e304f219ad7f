"""What stands between topic and table: a SQL statement or a Python function over DataFrames.

The records of a load are first written to files that no table names, parsed as for any load. They are views
of a Spark session, beside the declared inputs. The result's rows are written to the table's files by tasks of
Spark, and the load commits them with its offsets, as it commits any rows.

    definition.py       what a person writes down
    failure_reason.py   which sentence describes a failure (pure)
    result_columns.py   whether a result can be rows of the table, and as which types (pure)
    result_rows.py      batches of the result to rows of the table (pure)
    views.py            what a view reads: staged files, or a snapshot of a table
    frames.py           views and results as data sources of PySpark
    spark_job.py        one run of a transform
"""
