"""The process around the APIs: sockets, routing of requests, start and stop, periodic work."""
