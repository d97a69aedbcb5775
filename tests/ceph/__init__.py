"""What is tried on a real Ceph, which `run` here starts."""
