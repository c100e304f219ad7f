"""Consumer groups: who is a member, who has which partitions, how far each group has read.

`membership.py` and `offsets.py` decide and know no clock and no network; `coordinator.py` carries out what
they decide. Must not live here: requests and their versions (`api`), ZooKeeper (`cluster`).
"""
