"""Who a client is and how it proves that: principals, certificates, SASL mechanisms. Values and state
machines; sockets belong to `server/`."""
