"""What several test files share: running clusters, raw requests, record batches, stock clients, load.

Nothing here asserts anything about the broker; tests do. Nothing here imports the broker's code: what it
reads and writes is checked by other hands than those that wrote it; only `log_checks` asks the dump.
"""
