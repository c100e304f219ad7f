"""Replicas of partitions: their roles, progress, placement. Knows logs; knows no network and no ZooKeeper."""
