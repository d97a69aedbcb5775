"""The store on an S3-compatible server: chunks are parts of multipart uploads, and the rows of a ledger say which
chunks count."""
