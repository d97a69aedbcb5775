"""How bytes move between a client and a server: planned, hashed, sent, fetched, resumed.

Refuses to know paths of the API, tokens and connections: those are `api.py`'s and `transport.py`'s.
"""
