"""MD5 of many contents at once, in the lanes of the processor's vectors (docs/decisions/0041).

`md5.c` is the kernel, which `build.py` compiles where there is a compiler; `kernel.py` loads and tries it, `gathering.py`
brings together who hashes at the same time. Without the kernel everybody hashes alone.
"""
