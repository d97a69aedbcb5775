"""Connections and bytes below ASGI: uvicorn's protocol with limits, bodies past its parser, reads and writes in few calls.

Refuses to know what a request means: nothing here imports a protocol of uploads.
"""
