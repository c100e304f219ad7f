"""Log compaction (R5): of each key the newest record stays, and deleted keys go in the end.

`plan` decides which log and which of its segments, `records` reads keys of many batches at once, `key_map`
keeps the newest offset of each key, `rewrite` says what a batch becomes, `compaction_pass` reads and writes
files, and `worker` is the process in which that happens. Nothing here touches a log in use: `PartitionLog`
puts the result in place.
"""
