"""The operator: BrokerCluster, Topic and ConsumerGroup to Kubernetes objects and to requests to the brokers.

`runtime/handlers.py` receives events; it only queues the names of objects to reconcile. `*/reconcile.py`
observe, pass values to the plans, act, and write the status once. `*/plan.py` decide and are pure.
`proofs.py` has the five irreversible acts: each needs a proof from a fresh observation. Only `kubernetes/`
speaks to Kubernetes, only `brokers/` to brokers and ZooKeeper. Only the command imports parts of it.
"""
