"""The kill harness: real processes under load, killed at random, watched all the while by an auditor."""
