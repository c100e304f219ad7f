"""The only requests to brokers and ZooKeeper servers, and what they report, as values. Nothing is
decided here.
"""
