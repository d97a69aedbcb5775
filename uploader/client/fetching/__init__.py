"""Many files that come down: where each goes, and how they get there.

Refuses to believe the server: no name that it gives leads out of the directory that was chosen here.
"""
