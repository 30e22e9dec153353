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
    """Requests whose outcomes nobody waits for any more; the server is held while they are given up."""

    @classmethod
    def setUpClass(cls) -> None:
        cls.server = Server()
        cls.addClassCleanup(cls.server.kill)
        cls.cluster = farflash.Cluster(cls.server.api)

    def volume(self) -> farflash.Volume:
        """A new volume, deleted after the test."""
        name = self.id().rsplit(".", 1)[-1].replace("_", "-")[:60]
        self.cluster.create_volume(name, MIB)
        self.addCleanup(self.cluster.delete_volume, name)
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
    def test_an_outcome_for_which_there_is_no_memory_does_not_lose_the_others(self) -> None:
        source = """
import resource, select, farflash
volume = farflash.open_volume("v")
completions = farflash._farflash.Completions()
completions.read(volume, 1, 0, volume.size)
select.select([completions.fileno()], [], [])
completions.read(volume, 2, 1, 1)  # Refused at once, so that it is in the same batch.
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
_, most = resource.getrlimit(resource.RLIMIT_AS)
resource.setrlimit(resource.RLIMIT_AS, (used + volume.size // 4, most))
print([(key, succeeded, type(value).__name__) for key, succeeded, value in completions.fetch()])
"""
        with Server() as server:
            farflash.Cluster(server.api).create_volume("v", 64 * MIB)
            done = run(source, server.api)
        self.assertEqual(done.stdout, "[(1, False, 'MemoryError'), (2, False, 'Misaligned')]\n", done)


if __name__ == "__main__":
    unittest.main()
