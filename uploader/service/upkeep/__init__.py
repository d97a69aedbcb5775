"""What happens to uploads and contents without being asked: flushing, rebuilding, cleaning, scrubbing.

Refuses to decide when: that is the jobs' and the commands'.
"""
