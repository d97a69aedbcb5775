"""The commands for users, and the display of their progress. Knows the server only through `uploader.client`, because the
server may run anywhere.
"""
