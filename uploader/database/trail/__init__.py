"""The trail: acts are inserted, read, and forgotten when they are old. No row is ever changed."""
