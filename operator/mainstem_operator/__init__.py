"""The operator: Cluster, Topic and ConsumerGroup to Kubernetes objects and to requests to the brokers.

`handlers.py` tells what happens; it queues the name of what to look at, and nothing else. `reconcile_*.py`
observe, ask the plans, act, and write the status once. `plan_*.py` decide, purely. `proofs.py` has the five
acts that can't be taken back: each needs a proof made from a fresh look. Only `kube.py` speaks to
Kubernetes, only `admin.py` to brokers. Nothing here is imported by another program.
"""
