"""Tools that know nothing of uploads."""
