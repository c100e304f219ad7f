"""One file per family of requests; `api_table.py` lists every key with its versions and handler.

A handler reads the request, asks the owner of the state, and answers a dict under the schema's names.
Hard choices live below: in `replica`, `cluster` and `log`.
"""
