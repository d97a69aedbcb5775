"""Of an open upload: how its locks are waited for, who may append to it, and which of its chunks went bad."""
