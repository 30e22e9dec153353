"""Volumes for asyncio."""

from __future__ import annotations

import asyncio
import itertools
import weakref
from types import TracebackType
from typing import TYPE_CHECKING, Any

from ._cluster import Cluster, CreatedVolume, Tokens, VolumeRecord
from ._farflash import Completions, Volume
from ._swap import Swap

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer, WriteableBuffer

__all__ = ["AsyncCluster", "AsyncVolume"]


class _Reading(asyncio.Future[Any]):
    """A read into memory that is let go as soon as this is cancelled: a buffer is the caller's own again then."""

    def __init__(self, hub: _Hub, key: int, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop=loop)
        self._hub = weakref.ref(hub)
        self._key = key

    def cancel(self, msg: Any | None = None) -> bool:
        # At once: a callback would run only after the caller of cancel() has gone on.
        if hub := self._hub():
            hub.completions.forget(self._key)
        return super().cancel(msg)


class _Hub:
    """Where a loop fetches outcomes: it watches a pipe, so that no other thread needs the interpreter.

    Only the loop holds it, by what it watches: the futures here hold the loop, and when that is closed, with
    requests under way even, all goes.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.completions = Completions()
        self._futures: dict[int, asyncio.Future[Any]] = {}
        self._keys = itertools.count()
        loop.add_reader(self.completions.fileno(), self._fetch)

    def _fetch(self) -> None:
        for key, succeeded, value in self.completions.fetch():
            future = self._futures.pop(key, None)
            if future is None or future.done():
                continue  # Interrupted or cancelled: the outcome is not wanted.
            if succeeded:
                future.set_result(value)
            else:
                future.set_exception(value)

    def start(
        self, loop: asyncio.AbstractEventLoop, method: str, volume: Volume, *arguments: Any
    ) -> asyncio.Future[Any]:
        key = next(self._keys)
        future: asyncio.Future[Any]
        if method in ("read", "readinto"):
            future = _Reading(self, key, loop)
        else:
            future = loop.create_future()
        self._futures[key] = future
        try:
            getattr(self.completions, method)(volume, key, *arguments)
        except BaseException:
            del self._futures[key]
            raise
        return future


_hubs: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, weakref.ref[_Hub]]
_hubs = weakref.WeakKeyDictionary()


class AsyncCluster:
    """A cluster whose functions are awaited: each is that of Cluster, of the same name and with the same options.

    By default it is the cluster in the environment (FARFLASH_API). A call whose await is cancelled is carried out all
    the same.
    """

    def __init__(self, cluster: Cluster | None = None) -> None:
        self.cluster = cluster or Cluster()

    async def create_volume(self, name: str, size: int, **options: Any) -> CreatedVolume:
        """Makes a volume of size bytes."""
        return await asyncio.to_thread(self.cluster.create_volume, name, size, **options)

    async def list_volumes(self) -> list[VolumeRecord]:
        """All volumes that this user may see, by name."""
        return await asyncio.to_thread(self.cluster.list_volumes)

    async def show_volume(self, volume: str) -> VolumeRecord:
        """What is known of a volume, given by name or id."""
        return await asyncio.to_thread(self.cluster.show_volume, volume)

    async def open_volume(self, volume: str, **options: Any) -> AsyncVolume:
        """Opens a volume, given by name, id, or place."""
        return await AsyncVolume.open(volume, cluster=self.cluster, **options)

    async def resize_volume(
        self, volume: str, size: int, *, lose_data: bool = False, if_size: int | None = None
    ) -> VolumeRecord:
        """Changes a volume's size."""
        return await asyncio.to_thread(
            self.cluster.resize_volume, volume, size, lose_data=lose_data, if_size=if_size
        )

    async def set_slo(self, volume: str, **options: Any) -> VolumeRecord:
        """Changes what a volume is promised of its device."""
        return await asyncio.to_thread(self.cluster.set_slo, volume, **options)

    async def change_auth(self, volume: str, **options: Any) -> Tokens:
        """Makes new tokens for a volume."""
        return await asyncio.to_thread(self.cluster.change_auth, volume, **options)

    async def restrict_volume(self, volume: str, **options: Any) -> VolumeRecord:
        """Changes who may open a volume."""
        return await asyncio.to_thread(self.cluster.restrict_volume, volume, **options)

    async def delete_volume(self, volume: str, *, lose_data: bool = False) -> None:
        """Deletes a volume with all that is on it."""
        await asyncio.to_thread(self.cluster.delete_volume, volume, lose_data=lose_data)

    @property
    def incomplete_records(self) -> int:
        """How many changes are not wholly in the server's audit log, as Cluster.incomplete_records."""
        return self.cluster.incomplete_records


class AsyncVolume:
    """A volume whose requests are awaited. An asynchronous context manager that closes it.

    Requests begin when they are called, not when they are awaited; any number of them can be under way.
    A request whose await is cancelled is carried out all the same. A buffer to be read into must not be used
    until the read has ended or was cancelled. The buffers of write, write_tx, write_ex and write_tx_ex are sent from where
    they are: they must not be changed until the write has ended, and if that was cancelled, not at all any more, since its
    end is not reported. Bytes never change. A caller that wants to change a buffer again and cannot wait for ever keeps the future, and waits for it with
    asyncio.wait, which does not cancel. What is compared and swapped is copied at once, and so is metadata.
    """

    def __init__(self, volume: Volume) -> None:
        self.volume = volume

    @classmethod
    async def open(cls, volume: str, *, cluster: Cluster | None = None, **options: Any) -> AsyncVolume:
        """Opens a volume; options are those of Cluster.open_volume."""

        def open_it() -> Volume:
            return (cluster or Cluster()).open_volume(volume, **options)

        return cls(await asyncio.to_thread(open_it))

    def _start(self, method: str, *arguments: Any) -> asyncio.Future[Any]:
        loop = asyncio.get_running_loop()
        known = _hubs.get(loop)
        hub = known() if known else None
        if hub is None:
            hub = _Hub(loop)
            _hubs[loop] = weakref.ref(hub)
        return hub.start(loop, method, self.volume, *arguments)

    def read(self, offset: int, length: int) -> asyncio.Future[bytes]:
        """Reads length bytes at offset."""
        return self._start("read", offset, length)

    def readinto(self, offset: int, buffer: WriteableBuffer) -> asyncio.Future[int]:
        """Fills a writable buffer with what is at offset."""
        return self._start("readinto", offset, buffer)

    def write(self, offset: int, data: ReadableBuffer) -> asyncio.Future[None]:
        """Writes a bytes-like object to offset. It is durable when this has ended."""
        return self._start("write", offset, data)

    def write_tx(self, offset: int, data: ReadableBuffer) -> asyncio.Future[None]:
        """The same, all or nothing: TooLarge if data is longer than the volume's atomic_write_size."""
        return self._start("write_tx", offset, data)

    def write_zeroes(self, offset: int, length: int) -> asyncio.Future[None]:
        """Makes a range read as zeroes, metadata included."""
        return self._start("write_zeroes", offset, length)

    def deallocate(self, offset: int, length: int) -> asyncio.Future[None]:
        """Gives a range's space back. It reads as zeroes then, metadata included."""
        return self._start("deallocate", offset, length)

    def flush(self) -> asyncio.Future[None]:
        """Makes all that was written durable, on servers that do not do so at once."""
        return self._start("flush")

    def compare(self, offset: int, data: ReadableBuffer) -> asyncio.Future[bool]:
        """Whether data is what is at offset."""
        return self._start("compare", offset, data)

    async def compare_and_swap(
        self, offset: int, expected: ReadableBuffer, data: ReadableBuffer
    ) -> Swap:
        """Replaces what is at offset by data if it is expected."""
        return Swap(*await self._start("compare_and_swap", offset, expected, data))

    def read_ex(self, offset: int, length: int) -> asyncio.Future[tuple[bytes, bytes]]:
        """Reads the blocks of length bytes of data at offset: their data and their metadata."""
        return self._start("read_ex", offset, length)

    def write_ex(
        self, offset: int, data: ReadableBuffer, metadata: ReadableBuffer
    ) -> asyncio.Future[None]:
        """Writes blocks and their metadata to offset."""
        return self._start("write_ex", offset, data, metadata)

    def write_tx_ex(
        self, offset: int, data: ReadableBuffer, metadata: ReadableBuffer
    ) -> asyncio.Future[None]:
        """The same, all or nothing: TooLarge if data is longer than the volume's atomic_write_size."""
        return self._start("write_tx_ex", offset, data, metadata)

    def compare_ex(
        self, offset: int, data: ReadableBuffer, metadata: ReadableBuffer
    ) -> asyncio.Future[bool]:
        """Whether data and metadata are those of the blocks at offset."""
        return self._start("compare_ex", offset, data, metadata)

    async def compare_and_swap_ex(
        self,
        offset: int,
        expected: tuple[ReadableBuffer, ReadableBuffer],
        blocks: tuple[ReadableBuffer, ReadableBuffer],
    ) -> Swap:
        """Replaces the blocks at offset if they are as expected; both are pairs of data and metadata."""
        return Swap(*await self._start("compare_and_swap_ex", offset, expected, blocks))

    def failure_domain(self) -> asyncio.Future[dict[str, object] | None]:
        """Where the volume is, and with what it may fail, as Volume.failure_domain."""
        return self._start("failure_domain")

    async def close(self) -> None:
        """Closes the volume. Requests under way fail with Closed."""
        await asyncio.to_thread(self.volume.close)

    async def __aenter__(self) -> AsyncVolume:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"<farflash.AsyncVolume of {self.volume!r}>"
