"""Many files at once: what is unchanged stays as it is, what is small goes in batches, the rest each for itself.

Refuses to know how one file is sent: that is `transfers`.
"""
