"""What the columns of the tables hold."""
