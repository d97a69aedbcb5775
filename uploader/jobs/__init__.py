"""The background jobs, each with a `run_once`, and the loop that runs them."""
