"""The commands for operators: each loads the settings, calls a service, and prints. The services have all rules."""
