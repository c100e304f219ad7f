"""Transactions: which transactional id has which producer id, epoch and partitions, and how each one ends.

`states.py` and `transaction.py` decide, and know no clock and no network; `shard.py` carries out what they
decide. Markers are sent by `server`; requests and their versions belong to `api`, storage to `coordinator`.
"""
