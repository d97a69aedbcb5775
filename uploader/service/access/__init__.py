"""Who may use the server: users, tokens, links, and the owner that the first start makes.

Refuses to know how a caller shows who it is.
"""
