"""The protocols of others, on the same uploads."""
