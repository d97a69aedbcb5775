"""Uploads and blobs in directories of a local filesystem."""
