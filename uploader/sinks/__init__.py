"""The sinks of events: their configuration and their protocols. Knows nothing of the origin of events."""
