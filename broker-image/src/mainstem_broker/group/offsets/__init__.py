"""The offsets that groups have committed: their values, their records and when they expire.

Who may commit is decided by the group's protocol (`group/classic`, `group/consumer`).
"""
