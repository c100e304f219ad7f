"""The terminal side of `mainstem`: one module per family of commands, their shared options, and all output.

Arguments are parsed and results are shown here. What a command does to a cluster is in `mainstem.kafka`,
`mainstem.records`, `mainstem.trials` and `mainstem.local`, which never import this package.
"""
