"""One BrokerCluster: its reconcile, and the plans for manifests, restarts, disks, moves and status."""
