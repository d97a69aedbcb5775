"""What the trail tells: who did what to whom."""
