"""Benchmarks of the reports."""
