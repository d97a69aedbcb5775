"""Bytes that go on where an upload ends, in place of numbered chunks."""
