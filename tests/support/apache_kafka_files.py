"""Files that Apache Kafka wrote, in the place of ours, as in a move of data from one system to the other."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path

from tests.support.clusters import Cluster, partition_directory


def take_over(cluster: Cluster, log_directory: Path, topics: Iterable[str]) -> None:
    """Stop the cluster's one broker, give it Apache Kafka's files of partition 0 of each topic, and start it.

    The topics have to exist. Topic ids stay ours.
    """
    cluster.stop_broker(1)
    for topic in topics:
        directory = partition_directory(cluster, topic)
        for path in directory.iterdir():
            if path.name != "partition.metadata":
                path.unlink()
        for path in (log_directory / f"{topic}-0").iterdir():
            if path.name != "partition.metadata":
                shutil.copy(path, directory)
    for checkpoint in directory.parent.glob("*-checkpoint"):
        checkpoint.unlink()
    (directory.parent / ".kafka_cleanshutdown").unlink(missing_ok=True)
    cluster.start_broker(1)
