"""The protocol for those who upload: handlers decode, call one use case and encode; the rules are in the services."""
