"""What is computed from blobs and kept beside them: it may be thrown away at any time."""
