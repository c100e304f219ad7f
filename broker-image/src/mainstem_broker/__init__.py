"""The Mainstem broker: speaks the Kafka protocol and keeps partitioned, replicated logs on local disks.

Packages, top to bottom; imports only point downwards (held by import-linter):
`server` > `api` > `cluster` > `replica` > `log` > `protocol` > `config` > `errors`.
docs/internals follows requests through them.
"""
