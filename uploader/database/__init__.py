"""What has been accounted, who may store how much, which files exist: MySQL or MariaDB, or the embedded SQLite."""
