"""Callers, and the web pages that may call: tokens, JWTs, a proxy's header, signed links, origins."""
