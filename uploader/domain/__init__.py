"""Pure rules: no I/O, no async, no clock. Every other package may use them; they import only the errors."""
