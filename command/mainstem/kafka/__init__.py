"""A Kafka cluster as a client sees it: clients, raw requests, settings, quotas, replica moves and groups.

The operator uses this package too, so it imports neither the terminal nor any of the programs.
"""
