"""The sinks of events, as they are configured, and the protocol of each. Knows nothing of the origin of events."""
