"""What the process needs whatever it does: pending answers, timeouts, memory and the log level.

Belongs here: small mechanisms that know nothing of Kafka. Imports nothing else of the broker.
"""
