"""The pending bytes, delay queues and challenges in Redis. Pending bytes can be rebuilt from disk and database at any
time."""
