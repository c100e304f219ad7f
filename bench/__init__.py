"""Repeatable measurements of Mainstem beside Apache Kafka, on one machine and in one run.

What belongs here: starting both systems (`brokers`), what is done to them (`workloads`, `loader`), reading
what that costs (`processes`), and telling it (`report`). Nothing here is imported by the programs.
"""
