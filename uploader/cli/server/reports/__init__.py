"""What administrators read."""
