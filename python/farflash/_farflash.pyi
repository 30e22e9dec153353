"""The native module. Use it through the package."""

import builtins
from os import PathLike
from types import TracebackType
from typing import Any, Self, final

from _typeshed import ReadableBuffer, WriteableBuffer

from ._swap import Swap

__all__ = ["__version__", "Volume", "Cluster", "Completions", "open_place"]

__version__: str

@final
class Volume:
    """An open volume. Usable on any thread; a context manager that closes it.

    Offsets and lengths are in bytes, and multiples of block_size. Get one from farflash.open_volume or
    Cluster.open_volume.

    Where blocks have metadata (metadata_size), nothing is read, written or compared without it: read_ex and its
    like do so there, and what takes or gives data alone raises InvalidArgument.
    """

    def read(self, offset: int, length: int) -> bytes:
        """Reads length bytes at offset."""

    def readinto(self, offset: int, buffer: WriteableBuffer) -> int:
        """Fills a writable buffer of bytes with what is at offset; its length.

        What comes lands there at once: if this fails, some of it may be there.
        """

    def write(self, offset: int, data: ReadableBuffer) -> int:
        """Writes a bytes-like object to offset; its length. It is durable when this returns.

        Atomic up to atomic_write_size; more than transfer_size_max is several writes. It is sent from where it
        is: no other thread must change it meanwhile.
        """

    def write_tx(self, offset: int, data: ReadableBuffer) -> int:
        """Writes a bytes-like object to offset, all or nothing; its length.

        After a power failure it is wholly there or wholly absent. More than atomic_write_size raises TooLarge, and
        nothing of it is written. Else as write.
        """

    def write_zeroes(self, offset: int, length: int) -> None:
        """Makes a range read as zeroes, metadata included."""

    def deallocate(self, offset: int, length: int) -> None:
        """Gives a range's space back. It reads as zeroes then, metadata included."""

    def flush(self) -> None:
        """Makes all that was written durable, on servers that do not do so at once."""

    def compare(self, offset: int, data: ReadableBuffer) -> bool:
        """Whether data is what is at offset."""

    def compare_and_swap(self, offset: int, expected: ReadableBuffer, data: ReadableBuffer) -> Swap:
        """Replaces what is at offset by data if it is expected, at most atomic_write_size bytes.

        True if so. Else its miscompare is the first byte that differs.
        """

    def read_ex(self, offset: int, length: int) -> tuple[bytes, bytes]:
        """Reads the blocks of length bytes of data at offset: their data, and the metadata of all of them.

        Of a block that was never written, or was deallocated, both are zeroes.
        """

    def write_ex(self, offset: int, data: ReadableBuffer, metadata: ReadableBuffer) -> int:
        """Writes blocks and their metadata, metadata_size bytes for each, to offset; the length of the data.

        Each block with its metadata, both or neither. Else as write.
        """

    def write_tx_ex(self, offset: int, data: ReadableBuffer, metadata: ReadableBuffer) -> int:
        """Writes blocks and their metadata to offset, all or nothing; the length of the data.

        After a power failure all of them are there, or none. More data than atomic_write_size raises TooLarge, and
        nothing of it is written. Else as write_ex.
        """

    def compare_ex(self, offset: int, data: ReadableBuffer, metadata: ReadableBuffer) -> bool:
        """Whether data and metadata are those of the blocks at offset."""

    def compare_and_swap_ex(
        self,
        offset: int,
        expected: tuple[ReadableBuffer, ReadableBuffer],
        blocks: tuple[ReadableBuffer, ReadableBuffer],
    ) -> Swap:
        """As compare_and_swap; expected and blocks are pairs of data and metadata, as read_ex returns them.

        miscompare counts as if the metadata of each block came behind its data.
        """

    def close(self) -> None:
        """Closes the volume. Requests under way fail with Closed."""

    @property
    def size(self) -> int:
        """Its size in bytes, now."""

    @property
    def block_size(self) -> int:
        """The unit of offsets and lengths, in bytes."""

    @property
    def metadata_size(self) -> int:
        """Bytes of metadata that each block has beside its data; mostly 0. No other size or length counts it."""

    @property
    def atomic_write_size(self) -> int:
        """Bytes of the longest write that is wholly there or wholly absent after a power failure."""

    @property
    def transfer_size_max(self) -> int:
        """Bytes of the longest request that goes to the server in one piece."""

    @property
    def uuid(self) -> str | None:
        """Its id, for life."""

    @property
    def nqn(self) -> str:
        """The NVMe qualified name of its subsystem."""

    def failure_domain(self) -> dict[str, object] | None:
        """Where it is, and with what it may fail: host, labels, core, and the device with its model, serial
        number and health. None if the target does not say so."""

    @property
    def address(self) -> str:
        """Where it is served now, as ip:port."""

    @property
    def reconnects(self) -> int:
        """Times that its connection was made again."""

    def __enter__(self) -> Volume: ...
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
        /,
    ) -> None: ...

def open_place(target: str, options: Any) -> Volume: ...

@final
class Cluster:
    def __new__(
        cls, urls: builtins.list[str], token: str | None, ca: str | PathLike[str] | None
    ) -> Self: ...
    def open(self, volume: str, options: Any) -> Volume: ...
    def create(self, new: Any) -> str: ...
    # To what stands in this class, `list` is this.
    def list(self) -> str: ...
    def show(self, volume: str) -> str: ...
    def resize(
        self, volume: str, size: int, lose_data: bool, if_size_bytes: int | None
    ) -> str: ...
    def set_slo(self, volume: str, share: int | None, rates: tuple[int, int] | None) -> str: ...
    def change_auth(self, volume: str, cut: bool, grace_seconds: int | None) -> str: ...
    def restrict(
        self,
        volume: str,
        hosts: builtins.list[str] | None,
        networks: builtins.list[str] | None,
        interfaces: builtins.list[str] | None,
    ) -> str: ...
    def delete(self, volume: str, lose_data: bool) -> None: ...
    @property
    def incomplete_records(self) -> int: ...

@final
class Completions:
    def __init__(self) -> None: ...
    def fileno(self) -> int: ...
    def fetch(self) -> list[tuple[int, bool, Any]]: ...
    def forget(self, key: int) -> None: ...
    def read(self, volume: Volume, key: int, offset: int, length: int) -> None: ...
    def readinto(self, volume: Volume, key: int, offset: int, buffer: WriteableBuffer) -> None: ...
    def write(self, volume: Volume, key: int, offset: int, data: ReadableBuffer) -> None: ...
    def write_tx(self, volume: Volume, key: int, offset: int, data: ReadableBuffer) -> None: ...
    def write_zeroes(self, volume: Volume, key: int, offset: int, length: int) -> None: ...
    def deallocate(self, volume: Volume, key: int, offset: int, length: int) -> None: ...
    def flush(self, volume: Volume, key: int) -> None: ...
    def failure_domain(self, volume: Volume, key: int) -> None: ...
    def compare(self, volume: Volume, key: int, offset: int, data: ReadableBuffer) -> None: ...
    def compare_and_swap(
        self, volume: Volume, key: int, offset: int, expected: ReadableBuffer, data: ReadableBuffer
    ) -> None: ...
    def read_ex(self, volume: Volume, key: int, offset: int, length: int) -> None: ...
    def write_ex(
        self, volume: Volume, key: int, offset: int, data: ReadableBuffer, metadata: ReadableBuffer
    ) -> None: ...
    def write_tx_ex(
        self, volume: Volume, key: int, offset: int, data: ReadableBuffer, metadata: ReadableBuffer
    ) -> None: ...
    def compare_ex(
        self, volume: Volume, key: int, offset: int, data: ReadableBuffer, metadata: ReadableBuffer
    ) -> None: ...
    def compare_and_swap_ex(
        self,
        volume: Volume,
        key: int,
        offset: int,
        expected: tuple[ReadableBuffer, ReadableBuffer],
        blocks: tuple[ReadableBuffer, ReadableBuffer],
    ) -> None: ...
