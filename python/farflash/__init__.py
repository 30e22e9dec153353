"""Volumes of farflash servers, from Python.

    import farflash

    cluster = farflash.Cluster("http://192.0.2.1:7420,http://192.0.2.2:7420")
    created = cluster.create_volume("db-1", 1 << 30)

    with cluster.open_volume("db-1", token=created.tokens.token) as volume:
        volume.write(0, b"x" * 4096)
        assert volume.read(0, 4096) == b"x" * 4096
        if not volume.compare_and_swap(0, b"x" * 4096, b"y" * 4096):
            print("another program was quicker")

    with farflash.open_file("db-1", token=created.tokens.token) as file:   # FARFLASH_API says where
        file.seek(1000)
        file.write(b"any bytes anywhere")

Cluster and the functions of the same names make, find, open and delete volumes; Volume is an open volume, VolumeFile
one as a file of bytes. AsyncCluster and AsyncVolume are those for asyncio. Errors are subclasses of farflash.Error.

A volume made with metadata=16 (or 8, or 64) keeps so many bytes of the program's beside each block:
volume.write_ex(offset, data, metadata) and its like write, read, compare and swap both as one.

Requests wait for a server that went away, and are repeated when it is back, wherever it is then. While a call
waits, other threads run, and Ctrl-C interrupts it: a read at once, a write when what is under way has ended, so that
nothing of it is carried out later (a second Ctrl-C does not wait for that). write() sends from the caller's memory,
read() and readinto() receive into it, with one copy behind the kernel's; so do those of AsyncVolume: what is written
must not be changed until the write has ended. What AsyncVolume compares or swaps is copied when the request begins, and
blocks with metadata are copied once more. A process that was forked opens its volumes again.
"""

from ._aio import AsyncCluster, AsyncVolume
from ._cluster import (
    Cluster,
    CreatedVolume,
    CutOff,
    Drive,
    Tokens,
    VolumeRecord,
    change_auth,
    create_volume,
    delete_volume,
    list_volumes,
    open_volume,
    resize_volume,
    restrict_volume,
    set_slo,
    show_volume,
)
from ._errors import (
    AlreadyExists,
    Busy,
    Changed,
    Closed,
    Damaged,
    Error,
    Failed,
    InUse,
    InvalidArgument,
    Misaligned,
    NoSpace,
    NotFound,
    OutcomeUnknown,
    OutOfRange,
    PermissionDenied,
    TooLarge,
    Unproven,
    Unreachable,
    Unsupported,
    Untrusted,
)
from ._farflash import Volume, __version__
from ._file import VolumeFile, open_file
from ._swap import Swap

__all__ = [
    "AlreadyExists",
    "AsyncCluster",
    "AsyncVolume",
    "Busy",
    "Changed",
    "Closed",
    "Cluster",
    "CreatedVolume",
    "CutOff",
    "Damaged",
    "Drive",
    "Error",
    "Failed",
    "InUse",
    "InvalidArgument",
    "Misaligned",
    "NoSpace",
    "NotFound",
    "OutOfRange",
    "OutcomeUnknown",
    "PermissionDenied",
    "Swap",
    "Tokens",
    "TooLarge",
    "Unproven",
    "Unreachable",
    "Unsupported",
    "Untrusted",
    "Volume",
    "VolumeFile",
    "VolumeRecord",
    "__version__",
    "change_auth",
    "create_volume",
    "delete_volume",
    "list_volumes",
    "open_file",
    "open_volume",
    "resize_volume",
    "restrict_volume",
    "set_slo",
    "show_volume",
]
