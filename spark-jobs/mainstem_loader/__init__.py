"""The loader: topics of any Kafka-protocol broker into Delta tables, and SQL over those tables.

`load_topic` is the job from end to end, with `settings` in and a `report` out; `ranges` decides what a step
reads. `kafka` reads it, `payload` turns values into columns, `table` writes files and makes data and offsets
visible in one commit, `spark` is where tasks run. Nothing here knows the broker's or the command's code.
"""

from __future__ import annotations

from typing import Any


def register(spark: Any) -> None:
    """Register the format `mainstem` with a Spark session, also one over Spark Connect.

    A session finds the format by itself if the package is installed when it starts; this is for others.
    """
    from mainstem_loader.spark.source.read import MainstemDataSource

    spark.dataSource.register(MainstemDataSource)
