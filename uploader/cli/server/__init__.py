"""The commands for those who run the server: each loads the settings, asks a service, and prints.

Refuses to keep rules of its own: what may be done and how is the services'.
"""
