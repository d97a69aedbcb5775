"""The commands for those who upload: they talk to a server that runs anywhere.

Know it by `uploader.client` alone.
"""
