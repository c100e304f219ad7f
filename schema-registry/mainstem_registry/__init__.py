"""The schema registry: one program that keeps schemas in a topic and answers over HTTP.

`state`, `records`, `operations` and `schemas/` are pure; `store`, `election` and `server` act.
It shares nothing with the other programs but the Kafka protocol.
"""
