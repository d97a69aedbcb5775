"""Of a file that replaces one that is there: what the server has of it, and what is left to send."""
