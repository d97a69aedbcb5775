"""What a person means by a word, a file, a folder or a pattern of names; and the commands that need no more than that.

Refuses to choose where a word means several things: it says so, with the ids to choose by.
"""
