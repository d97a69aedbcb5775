"""Authentication: tokens, JWTs, a proxy's header, signed URLs, and the origins whose web pages may call."""
