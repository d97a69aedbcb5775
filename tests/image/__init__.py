"""The image that the Dockerfile makes."""
