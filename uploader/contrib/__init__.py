"""Parts for applications of others' frameworks: one module for each framework, which alone imports it."""
