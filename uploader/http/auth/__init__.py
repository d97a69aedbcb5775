"""Who calls, and which pages may: tokens, JWTs, a proxy's header, signed links, origins."""
