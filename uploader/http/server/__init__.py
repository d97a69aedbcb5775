"""Connections and bytes below ASGI: nothing here knows a protocol of uploads."""
