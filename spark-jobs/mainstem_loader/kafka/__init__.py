"""A Kafka client for loads: connections, leaders, fetches, batches to Arrow, and the deletion of records that
are loaded. What a value means, and where rows go, does not belong here.
"""
