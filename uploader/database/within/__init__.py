"""What a transaction of SQLite calls from its thread, and what that writes."""
