"""Resumable uploads of HTTP: draft-ietf-httpbis-resumable-upload, in all versions that clients speak."""
