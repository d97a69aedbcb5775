"""Open uploads on S3."""
