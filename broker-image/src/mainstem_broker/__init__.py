"""The Mainstem broker: speaks the Kafka protocol and keeps partitioned, replicated logs on local disks.

Packages, top to bottom; imports only point downwards (held by import-linter):
`server` > `api` > `cluster` > `replica` > `log` > `protocol` > `config` > `errors`.
ARCHITECTURE.md tells the life of a request through them.
"""
