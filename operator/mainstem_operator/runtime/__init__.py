"""What runs the operator: events from Kubernetes, the work queue, what every reconcile shares, the
Lease, HTTP and metrics. No decision about a cluster, a topic or a group belongs here.
"""
