"""Where events go: the sinks as they are configured, and how each is spoken to. Knows nothing of where events come from."""
