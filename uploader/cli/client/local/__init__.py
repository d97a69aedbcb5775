"""The files here that commands are about."""
