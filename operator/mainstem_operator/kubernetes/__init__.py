"""The only calls to the Kubernetes API except kopf's watches: the client, the manifests it applies,
and observing a cluster. Nothing is decided here.
"""
