"""The native upload protocol. Handlers decode a request, call one use case and encode the result; the rules are in the
services.
"""
