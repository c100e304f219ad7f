"""Consumer groups of KIP-848: the broker assigns partitions and members reconcile with heartbeats.

Members of the classic protocol in such a group belong to `group/bridge`.
"""
