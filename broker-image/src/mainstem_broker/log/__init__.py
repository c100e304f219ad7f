"""Partition logs on local disks: segments, indexes, recovery, retention, checkpoints, their manager.

Belongs here: everything that knows Kafka's file names and formats. Does not: who leads a partition, how far
its records are replicated or visible, requests, asyncio. The loop calls every method; only `flush`, opening
(with its recovery) and unlinking may run in other threads meanwhile.
"""
