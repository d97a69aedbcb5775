"""What happens without being asked: each job is one small module with `run_once`, and one loop runs them all."""
