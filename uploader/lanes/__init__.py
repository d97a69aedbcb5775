"""MD5 of many contents at once, in the lanes of the processor's vectors (docs/decisions/0041).

`md5.c` is the kernel, which `build.py` compiles where there is a compiler; `kernel.py` loads and tries it. Who hashes
at the same time comes together in `uploader/storage/hashes.py`. Without the kernel everybody hashes alone.
"""
