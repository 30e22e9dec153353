"""What asyncio's tasks leave behind when they end before their requests do."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import signal
import time
import unittest
import weakref
from pathlib import Path

import farflash
from server import MIB, Server, run

BLOCK = 4096


def pipes() -> set[str]:
    """Those that this process has open."""
    links = set()
    for file in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            links.add(os.readlink(file))
    return {link for link in links if link.startswith("pipe:")}


class Abandoned(unittest.TestCase):
    """Requests whose outcomes are not awaited any more; the server is held while they are given up."""

    @classmethod
    def setUpClass(cls) -> None:
        cls.server = Server()
        cls.addClassCleanup(cls.server.kill)
        cls.cluster = farflash.Cluster(cls.server.api)

    def volume(self) -> farflash.Volume:
        """A new volume, deleted after the test."""
        name = self.id().rsplit(".", 1)[-1].replace("_", "-")[:60]
        self.cluster.create_volume(name, MIB)
        self.addCleanup(self.cluster.delete_volume, name, lose_data=True)
        volume = self.cluster.open_volume(name)
        self.addCleanup(volume.close)
        self.addCleanup(self.server.resume)
        return volume

    def test_a_buffer_is_the_callers_again_when_the_read_into_it_is_cancelled(self) -> None:
        volume = farflash.AsyncVolume(self.volume())

        async def work() -> None:
            await volume.write(0, b"a" * BLOCK)
            for is_cancelled in (True, False):
                buffer = bytearray(BLOCK)
                self.server.pause()
                read = volume.readinto(0, buffer)
                if is_cancelled:
                    read.cancel()
                else:
                    with self.assertRaises(TimeoutError):
                        await asyncio.wait_for(read, 0)
                buffer.append(0)  # A BufferError if anybody else has a view of it.
                self.server.resume()
                self.assertEqual(await volume.read(0, BLOCK), b"a" * BLOCK)
                self.assertEqual(buffer, bytes(BLOCK + 1))

        asyncio.run(work())

    def test_a_buffer_is_kept_until_the_write_from_it_has_ended_though_it_was_cancelled(self) -> None:
        volume = farflash.AsyncVolume(self.volume())

        async def work() -> None:
            for is_cancelled in (True, False):
                buffer = bytearray(b"b" * BLOCK)
                self.server.pause()
                write = volume.write(0, buffer)
                if is_cancelled:
                    write.cancel()
                else:
                    with self.assertRaises(TimeoutError):
                        await asyncio.wait_for(write, 0)
                with self.assertRaises(BufferError):
                    buffer.append(0)
                self.server.resume()
                deadline = time.monotonic() + 60
                while len(buffer) == BLOCK and time.monotonic() < deadline:
                    await volume.flush()  # The loop hears of what has ended.
                    with contextlib.suppress(BufferError):
                        buffer.append(0)
                self.assertEqual(len(buffer), BLOCK + 1)
                # It was carried out all the same.
                self.assertEqual(await volume.read(0, BLOCK), b"b" * BLOCK)
                await volume.write_zeroes(0, BLOCK)

        asyncio.run(work())

    def test_a_buffer_outlives_a_loop_that_is_closed_before_the_write_from_it_has_ended(self) -> None:
        volume = farflash.AsyncVolume(self.volume())
        buffer = bytearray(b"c" * BLOCK)

        async def work() -> None:
            await volume.flush()
            self.server.pause()
            volume.write(0, buffer)
            await asyncio.sleep(0)

        asyncio.run(work())
        gc.collect()
        with self.assertRaises(BufferError):
            buffer.append(0)
        self.server.resume()
        deadline = time.monotonic() + 60
        while len(buffer) == BLOCK and time.monotonic() < deadline:
            volume.volume.write(BLOCK, bytes(BLOCK))  # Lets go of what is not needed any more.
            with contextlib.suppress(BufferError):
                buffer.append(0)
        self.assertEqual(len(buffer), BLOCK + 1)
        self.assertEqual(volume.volume.read(0, BLOCK), b"c" * BLOCK)

    def test_a_buffer_is_the_callers_again_when_the_volume_is_closed_amid_the_write_from_it(self) -> None:
        """While the data is on its way, of which the server takes no more."""
        name = "amid"
        self.cluster.create_volume(name, 64 * MIB)
        self.addCleanup(self.cluster.delete_volume, name, lose_data=True)
        self.addCleanup(self.server.resume)

        async def work() -> None:
            async with await farflash.AsyncVolume.open(name, cluster=self.cluster) as volume:
                buffers = [bytearray(4 * MIB) for _ in range(16)]
                writes = [volume.write(n * 4 * MIB, buffer) for n, buffer in enumerate(buffers)]
                await writes[0]
                self.server.pause()
            for write, buffer in zip(writes, buffers):
                with contextlib.suppress(farflash.Closed):
                    await write
                buffer.append(0)  # A BufferError if anybody else has a view of it.

        for _ in range(4):
            asyncio.run(work())
            self.server.resume()

    def test_a_loop_that_is_closed_before_its_requests_end_leaves_nothing(self) -> None:
        volume = farflash.AsyncVolume(self.volume())
        buffer = bytearray(BLOCK)

        async def work() -> tuple[weakref.ref[asyncio.AbstractEventLoop], asyncio.Future[int]]:
            await volume.flush()
            self.server.pause()
            pending = [volume.readinto(0, buffer), volume.read(0, BLOCK)]
            await asyncio.sleep(0)
            return weakref.ref(asyncio.get_running_loop()), pending[0]

        broken: list[int] = []
        handler = signal.signal(signal.SIGPIPE, lambda *_: broken.append(1))
        self.addCleanup(signal.signal, signal.SIGPIPE, handler)
        before = pipes()
        loop, read = asyncio.run(work())
        gc.collect()
        buffer.append(0)  # A BufferError if anybody else has a view of it.
        read.cancel()
        del read
        gc.collect()
        self.assertIsNone(loop())
        self.server.resume()
        volume.volume.flush()
        deadline = time.monotonic() + 60
        while pipes() - before and time.monotonic() < deadline:
            time.sleep(0.01)
        self.assertEqual((pipes() - before, broken), (set(), []))


class Outcomes(unittest.TestCase):
    def test_a_buffer_is_the_callers_again_when_the_write_from_it_has_ended(self) -> None:
        """However the write ends, and whatever the library has still to do for it."""
        with Server() as server:
            cluster = farflash.Cluster(server.api)
            cluster.create_volume("v", MIB)
            volume = farflash.AsyncVolume(cluster.open_volume("v"))

            async def write(n: int) -> None:
                buffer = bytearray(n.to_bytes(8) * (BLOCK // 8))
                await volume.write(n % 256 * BLOCK, buffer)
                buffer.append(0)  # A BufferError if anybody else has a view of it.

            async def work() -> None:
                for start in range(0, 4096, 256):
                    await asyncio.gather(*(write(n) for n in range(start, start + 256)))
                buffer = bytearray(BLOCK)
                for offset, error in ((1, farflash.Misaligned), (MIB, farflash.OutOfRange)):
                    with self.assertRaises(error):
                        await volume.write(offset, buffer)
                    buffer.append(0)
                    buffer.pop()

            asyncio.run(work())
            for n in range(256):
                data = (n + 4096 - 256).to_bytes(8) * (BLOCK // 8)
                self.assertEqual(volume.volume.read(n * BLOCK, BLOCK), data)

    def test_what_is_read_lands_in_the_bytes_that_are_returned(self) -> None:
        """There is memory for what is read, but not for a copy of it."""
        source = """
import asyncio, resource, farflash
volume = farflash.open_volume("v")
async def main():
    own = farflash.AsyncVolume(volume)
    await own.read(0, 4096)
    used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
    _, most = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (used + volume.size * 3 // 2, most))
    data = await own.read(0, volume.size)
    print(len(data) == volume.size, data[-4096:] == b"a" * 4096)
asyncio.run(main())
"""
        with Server() as server:
            cluster = farflash.Cluster(server.api)
            cluster.create_volume("v", 64 * MIB)
            with cluster.open_volume("v") as volume:
                volume.write(volume.size - BLOCK, b"a" * BLOCK)
            done = run(source, server.api)
        self.assertEqual(done.stdout, "True True\n", done)

    def test_an_outcome_for_which_there_is_no_memory_does_not_lose_the_others(self) -> None:
        source = """
import resource, select, farflash
volume = farflash.open_volume("v")
completions = farflash._farflash.Completions()
completions.read_ex(volume, 1, 0, volume.size)
select.select([completions.fileno()], [], [])
completions.read_ex(volume, 2, 1, 1)  # Refused at once, so that it is in the same batch.
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
_, most = resource.getrlimit(resource.RLIMIT_AS)
resource.setrlimit(resource.RLIMIT_AS, (used + volume.size // 4, most))
print([(key, succeeded, type(value).__name__) for key, succeeded, value in completions.fetch()])
"""
        with Server() as server:
            farflash.Cluster(server.api).create_volume("v", 64 * MIB, metadata=8)
            done = run(source, server.api)
        self.assertEqual(done.stdout, "[(1, False, 'MemoryError'), (2, False, 'Misaligned')]\n", done)


if __name__ == "__main__":
    unittest.main()
