"""Detects problems and reports them. Decides nothing."""
