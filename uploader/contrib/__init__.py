"""Integrations with web frameworks: a module for each framework. Only this module imports the framework."""
