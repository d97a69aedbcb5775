"""MD5 and SHA-256 of many contents at once (docs/decisions/0041).

`lanes.c` has the kernels, which `build.py` compiles where there is a compiler; `kernel.py` loads and tries them. Who hashes
at the same time comes together in `uploader/storage/hashes.py`. Without a kernel everybody hashes alone.
"""
