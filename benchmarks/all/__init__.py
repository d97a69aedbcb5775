"""All questions that a reader asks first, measured with the peers in the same runs, by one command."""
