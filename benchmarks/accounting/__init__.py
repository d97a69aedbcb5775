"""The accounting under load: `python -m benchmarks.accounting`."""
