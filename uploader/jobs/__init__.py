"""The background jobs: each job is one small module with `run_once`, and one loop runs them all."""
