"""The HTTP edge: decodes and checks requests, asks the service, encodes its answers. Status codes live here only."""
