"""What makes wholes of parts in the background."""
