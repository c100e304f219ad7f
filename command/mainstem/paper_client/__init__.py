"""The client of the 2011 paper: its sample code (§3) as a library, coordinated by ZooKeeper alone (§3.2).

`Producer`, `Message` and `MessageSet` send; `Consumer` hands out streams that never end. Consumers of a
group have no master: each computes its share of a topic and claims it by ephemeral nodes. What they keep in
ZooKeeper has the paths of Apache Kafka 0.8, so that its tools and people find it.

In scope: that, and nothing of the command or the broker. Applications of today use a stock client; this is
for who wants the paper's way, or to see it work.
"""

from __future__ import annotations

from mainstem.paper_client.consumer import Consumer
from mainstem.paper_client.messages import Message, MessageSet, ReceivedMessage
from mainstem.paper_client.producer import Producer

__all__ = ["Consumer", "Message", "MessageSet", "Producer", "ReceivedMessage"]
