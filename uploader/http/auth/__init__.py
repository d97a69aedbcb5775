"""Authentication, and the pages that may call: tokens, JWTs, a proxy's header, signed links, origins.

Refuses to decide what a caller may do beyond what an operation asks for.
"""
