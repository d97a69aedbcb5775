"""MD5 and SHA-256 of many contents at once (docs/decisions/0041).

`lanes.c` has the kernels. `build.py` compiles them if there is a compiler, and `kernel.py` loads and tests them.
`uploader/storage/hashes.py` collects simultaneous hashing. Without a kernel each content is hashed alone.
"""
