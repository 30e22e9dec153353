"""A volume as a file of bytes."""

from __future__ import annotations

import ctypes
import errno
import io
import os
from typing import TYPE_CHECKING, Any

from ._cluster import open_volume
from ._errors import Busy, Error, OutcomeUnknown
from ._farflash import Volume

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer, WriteableBuffer

__all__ = ["VolumeFile", "open_file"]

#: Bytes of the longest read that does not begin and end with a block: it is read elsewhere, then copied.
_PARTS_MAX = 1 << 20
#: Times that a part of a block is tried to be changed while others change the same block.
_SWAPS_MAX = 10_000


def _bytes_of(buffer: ReadableBuffer) -> memoryview | None:
    """The bytes of a contiguous buffer; None if its elements are of a type that memoryview cannot take apart."""
    view = memoryview(buffer)
    if not view.c_contiguous:
        raise BufferError("the buffer is not contiguous")
    if view.nbytes == 0:
        return memoryview(b"")
    try:
        return view.cast("B")
    except (TypeError, ValueError, NotImplementedError):
        return None


class VolumeFile(io.RawIOBase):
    """A volume as a seekable file, as long as the volume. Wrap it in io.BufferedRandom for short requests,
    or get one that is wrapped from farflash.open_file.

    Whole blocks are read and written as they are. A part of a block is changed by reading the block and replacing
    it by compare-and-swap, again if another has changed it in between: so writers of different bytes of one
    block, in whatever processes, do not undo each other's writes. Each block of a write changes at once; a write
    with parts of blocks at its ends is not atomic as a whole. (A BufferedRandom writes what it has read: two of
    them over one volume do undo each other's writes.)

    A volume whose blocks have metadata is no file of bytes: reads and writes raise InvalidArgument.

    close() closes the volume, too, unless closes_volume is False.
    """

    def __init__(self, volume: Volume, *, closes_volume: bool = True) -> None:
        super().__init__()
        self.volume = volume
        self._position = 0
        self._block = volume.block_size
        self._closes_volume = closes_volume

    def readable(self) -> bool:
        return True

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        self._check_open()
        return self._position

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        self._check_open()
        if whence == os.SEEK_CUR:
            offset += self._position
        elif whence == os.SEEK_END:
            offset += self.volume.size
        elif whence != os.SEEK_SET:
            raise ValueError(f"whence is 0, 1 or 2, not {whence}")
        if offset < 0:
            raise OSError(errno.EINVAL, "a position before the beginning")
        self._position = offset
        return offset

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        """Reads up to the end of the buffer or of the volume, or less. 0 at the volume's end."""
        self._check_open()
        view = _bytes_of(buffer)
        if view is None:
            return self._readinto_elsewhere(buffer)
        here, block = self._position, self._block
        length = min(len(view), max(0, self.volume.size - here))
        if length == 0:
            return 0
        if here % block == 0 and length >= block:
            length -= length % block
            self.volume.readinto(here, view[:length])
        else:
            length = min(length, _PARTS_MAX)
            start, end = here - here % block, -(-(here + length) // block) * block
            data = memoryview(self.volume.read(start, end - start))
            view[:length] = data[here - start : here - start + length]
        self._position += length
        return length

    def _readinto_elsewhere(self, buffer: WriteableBuffer) -> int:
        """Fills a buffer whose bytes memoryview does not show, as it does not those of ctypes."""
        data = bytearray(memoryview(buffer).nbytes)
        length = self.readinto(data)
        target = (ctypes.c_char * len(data)).from_buffer(buffer)
        ctypes.memmove(target, bytes(data[:length]), length)
        return length

    def readall(self) -> bytes:
        """Reads to the volume's end."""
        self._check_open()
        here, block = self._position, self._block
        length = max(0, self.volume.size - here)
        if length == 0:
            return b""
        skip = here % block
        data = self.volume.read(here - skip, -(-(skip + length) // block) * block)
        self._position += length
        return data[skip : skip + length] if len(data) > length else data

    def write(self, data: ReadableBuffer, /) -> int:
        """Writes all of data that fits before the volume's end, or less if the rest fails; OSError (ENOSPC) if
        nothing fits. The position moves only when this returns.
        """
        self._check_open()
        view, here = _bytes_of(data), self._position
        if view is None:
            view = memoryview(memoryview(data).tobytes())
        length = min(len(view), max(0, self.volume.size - here))
        if length == 0 and len(view) > 0:
            raise OSError(errno.ENOSPC, "the volume ends here")
        done = 0
        while done < length:
            try:
                done += self._write_part(here + done, view[done:length])
            except Error:
                if done == 0:
                    raise
                break  # What was written counts; the next write meets the error.
        # What a signal raises comes before this: a buffer above writes all of it again, from where it was.
        self._position = here + done
        return done

    def _write_part(self, here: int, data: memoryview) -> int:
        """Writes the part of a block with which data begins, or else its whole blocks; how much that is."""
        skip = here % self._block
        if skip or len(data) < self._block:
            data = data[: self._block - skip]
            self._change_part(here - skip, skip, data)
        else:
            data = data[: len(data) - len(data) % self._block]
            self.volume.write(here, data)
        return len(data)

    def _change_part(self, offset: int, skip: int, data: memoryview) -> None:
        for _ in range(_SWAPS_MAX):
            old = self.volume.read(offset, self._block)
            new = bytearray(old)
            new[skip : skip + len(data)] = data
            try:
                if self.volume.compare_and_swap(offset, old, new):
                    return
            except OutcomeUnknown:
                # Whether done or not: to do it again has the same effect on these bytes.
                continue
        raise Busy._of(f"the block at {offset} is changed by others all the time")

    def truncate(self, size: int | None = None, /) -> int:
        """Not for volumes: see Cluster.resize_volume."""
        raise io.UnsupportedOperation("a volume's size changes by Cluster.resize_volume")

    def flush(self) -> None:
        """Makes all that was written durable."""
        self._check_open()
        self.volume.flush()

    def close(self) -> None:
        if self.closed:
            return
        try:
            super().close()
        finally:
            if self._closes_volume:
                self.volume.close()

    def _check_open(self) -> None:
        if self.closed:
            raise ValueError("I/O operation on closed file")


def open_file(volume: str | Volume, *, buffer_size: int = 1 << 16, **options: Any) -> io.BufferedRandom:
    """Opens a volume as a buffered file that can be read, written and sought. Options are those of
    open_volume; an open volume is taken, too, and closed with the file.
    """
    if not isinstance(volume, Volume):
        volume = open_volume(volume, **options)
    return io.BufferedRandom(VolumeFile(volume), buffer_size)
