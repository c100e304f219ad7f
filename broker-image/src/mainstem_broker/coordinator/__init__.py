"""A coordinator's state in partitions of an internal topic: loading, replay, fencing and replicated appends.

What the records mean belongs to the packages above (`group`); nothing here decides about groups.
"""
