"""The Lua scripts, one file a verb, and the preludes (`_*.lua`) that `scripting.py` puts before each."""
