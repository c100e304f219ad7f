"""An application that processes orders exactly once, as a process that tests kill and start again.

`loop.py` is the application, `confluent_clients.py` and `java_clients.py` its clients, `__main__.py` the
process and `processes.py` what a test does with it.
"""
