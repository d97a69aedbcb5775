"""The commands for those who run the server.

Each loads the settings, asks a service, and prints.
"""
