"""The local stack: one ZooKeeper and one or more brokers as processes of this machine, in one folder."""
