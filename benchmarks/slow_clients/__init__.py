"""What slow clients cost those who are honest."""
