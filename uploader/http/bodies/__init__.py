"""The bodies of requests: received whole, in memory within a budget or in a spool, whatever they are for."""
