"""The accounts, the quotas and the files: in MySQL or MariaDB, or the embedded SQLite."""
