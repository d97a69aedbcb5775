"""The clients of others in a browser: packages of npm in a page of one origin, the server at another."""
