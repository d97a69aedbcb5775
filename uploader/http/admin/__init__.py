"""`/admin`, for administrators: reports, quotas, the uploads of everybody.

Handlers decode, call one use case and encode.
"""
