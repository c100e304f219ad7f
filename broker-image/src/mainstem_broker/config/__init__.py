"""Settings of the broker, its topics and its groups under Kafka's names, and the settings file.

Belongs here: definitions, parsing, precedence and typed views. Does not: reading ZooKeeper, and acting on a
value.
"""
