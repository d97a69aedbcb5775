"""The Lua scripts, one file per verb, and the preludes (`_*.lua`). `redis.py` prepends the definitions that a script
uses."""
