"""Bytes to requests and responses and back, and record batches seen as bytes.

Belongs here: the wire's encodings, and the rules that hold for a request or a batch by itself. Does not:
sockets, files, and anything that depends on what the broker has stored.
"""
