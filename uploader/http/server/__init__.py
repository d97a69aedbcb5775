"""Connections and bytes below ASGI; nothing here knows an upload protocol."""
