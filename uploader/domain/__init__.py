"""The rules, pure: no I/O, no async, no clock. Everything above may use them; they use nothing but the errors."""
