"""What tells the sinks of events, and forgets."""
