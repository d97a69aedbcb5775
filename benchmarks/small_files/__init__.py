"""Many small files: how fast they arrive, what one costs the server, and what those that are there already cost."""
