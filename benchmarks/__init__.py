"""What the server can do, measured on real servers; one package for each subject, each run by one command."""
