"""The HTTP edge: decodes and checks requests, calls the services, encodes answers. Only this package knows status codes."""
