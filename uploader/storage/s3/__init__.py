"""The store on an S3-compatible server: chunks are parts, and the rows of a ledger say which parts count."""
