"""Only what changed: what a client is told of a file that is there, and how it says what to make of it."""
