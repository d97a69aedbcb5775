"""The stores of open uploads and blobs: a local directory, or a bucket of an S3-compatible server."""
