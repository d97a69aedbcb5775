"""Uploads and blobs in directories of a local filesystem.

Owns the order in which effects reach the disk, and the locks around them; refuses to know users, quotas and Redis.
"""
