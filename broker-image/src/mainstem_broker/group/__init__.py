"""Groups of consumers: their members, the partitions that each member reads, and the committed offsets.

The groups in `classic/`, `consumer/` and `bridge/` decide, and know no clock and no network; `shard.py`
carries out what they decide. Requests and their versions belong to `api`, storage to `coordinator`.
"""
