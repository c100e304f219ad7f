"""Both protocols in one group (KIP-848, "Online upgrade"): classic members in consumer groups, and migration.

The rules of either protocol alone belong to `group/classic` and `group/consumer`.
"""
