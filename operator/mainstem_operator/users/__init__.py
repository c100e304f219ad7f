"""Users of a secured BrokerCluster: their Secrets, and their passwords, ACLs and quotas on the brokers."""
