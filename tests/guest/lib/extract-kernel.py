"""Writes the ELF image inside a compressed Linux kernel: extract-kernel.py VMLINUZ VMLINUX.

QEMU boots the bare ELF through PVH, which spares the emulated processor the decompression.
"""

import subprocess
import sys

# The payload of a bzImage is found by its compression's magic; a match that does not unpack to an
# ELF file is chance, and the search goes on behind it.
FORMATS = ((b"\xfd7zXZ\0", "xz"), (b"\x28\xb5\x2f\xfd", "zstd"), (b"\x1f\x8b\x08\0", "gzip"))


def unpack(image):
    for magic, tool in FORMATS:
        start = image.find(magic)
        while start >= 0:
            run = subprocess.run([tool, "-dc"], input=image[start:], capture_output=True)
            if run.stdout.startswith(b"\x7fELF"):
                return run.stdout
            start = image.find(magic, start + 1)
    return None


with open(sys.argv[1], "rb") as source:
    kernel = unpack(source.read())
if kernel is None:
    sys.exit("no compressed ELF image in " + sys.argv[1])
with open(sys.argv[2], "wb") as target:
    target.write(kernel)
