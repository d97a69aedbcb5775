"""The stores: they keep the bytes of open uploads and the blobs, in a local directory or in a bucket of an
S3-compatible server. A store, not Redis, decides which chunks have arrived."""
