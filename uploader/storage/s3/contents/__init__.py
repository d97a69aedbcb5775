"""Contents on S3."""
