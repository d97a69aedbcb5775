"""For those who run the server or write a client for it: health, metrics, configuration, documents, the web pages.

Changes nothing.
"""
