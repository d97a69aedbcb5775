"""What a store on S3 has written down: its open uploads, where contents lie, and its trash."""
