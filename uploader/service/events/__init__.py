"""The use cases of events: telling the sinks, and what became of that."""
