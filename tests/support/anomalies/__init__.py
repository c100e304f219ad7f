"""Judges histories of transactions by the anomalies of Jepsen's Kafka model, in our own implementation.

`history` holds the operations, `anomalies` the kinds and which of them Kafka's design allows, `log_order`
what a history says about the order of each partition, and `check` finds the anomalies. Pure: no clients, no
clocks.
"""
