"""How bytes move between a client and a server: planned, hashed, sent, fetched, resumed.

Refuses to know how a call reaches the server: that is the transport's.
"""
