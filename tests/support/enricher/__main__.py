"""One instance of the application: `python -m tests.support.enricher CONFIG`.

CONFIG is JSON: `kind` (confluent, java), `servers`, `transactional_id`, `protocol` of its group (classic,
consumer; for java), and for java `class_path`, the folder of Apache Kafka's jars. The process ends with an
error when its producer is fenced; a new one with the same transactional id takes its work over.
"""

from __future__ import annotations

import json
import os
import random
import sys

from tests.support.enricher.confluent_clients import ConfluentClients
from tests.support.enricher.java_clients import JavaClients
from tests.support.enricher.loop import Clients, run

config = json.loads(sys.argv[1])
clients: Clients = JavaClients(config) if config["kind"] == "java" else ConfluentClients(config)
run(clients, f"{config['transactional_id']}/{os.getpid()}", random.Random())
