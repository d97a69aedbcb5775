"""The foundation of all HTTP protocols; nothing here knows a particular operation."""
