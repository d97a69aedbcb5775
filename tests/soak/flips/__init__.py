"""The flip harness: clients work on a real server while bytes of its disk flip, and nobody is told wrong ones or harmed for
another one's.
"""
