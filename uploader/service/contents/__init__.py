"""What becomes of contents whoever has them: bytes that went bad are found, marked and healed; bytes that nobody names go to
the trash, and come back from it.
"""
