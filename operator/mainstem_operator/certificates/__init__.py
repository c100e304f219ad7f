"""The certificates of a secured BrokerCluster: two authorities, and what they issue. Keys lie in Secrets and
nowhere else.
"""
