"""End to end: real images on a real Kubernetes, whichever a kubeconfig names.

Belongs here: tests that need a cluster, what they share, and in `machine/` what makes a cluster where there
is none.
Not collected by a plain `pytest`: `make e2e` runs it.
"""
