"""What applications of others' frameworks take of `uploader.asgi`: one module for each framework, which alone imports it."""
