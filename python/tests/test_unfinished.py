"""Of a call that raised nothing is carried out later: what is written next stays, and so does its buffer."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import threading
import time
import unittest
from collections.abc import Callable

import farflash
from proxy import Proxy
from server import MIB, Server

BLOCK = 4096
#: Bytes of one of the requests in which a long write is done.
STRIDE = 4 * MIB
#: Round trips in which a call that does not wait for what is under way would have come back.
ROUND_TRIPS = 100
PATIENCE = 60


class Signalled(Exception):
    """What the test's signal handler raises."""


class Proxied(unittest.TestCase):
    """A volume of a real server, behind a proxy."""

    @classmethod
    def setUpClass(cls) -> None:
        cls.server = Server()
        cls.addClassCleanup(cls.server.kill)
        cls.cluster = farflash.Cluster(cls.server.api)

    def setUp(self) -> None:
        name = self.id().rsplit(".", 1)[-1].replace("_", "-")[:60]
        created = self.cluster.create_volume(name, 64 * MIB)
        self.addCleanup(self.cluster.delete_volume, name, lose_data=True)
        self.proxy = Proxy(created.address)
        self.addCleanup(self.proxy.close)
        place = f"tcp://{self.proxy.address}/{created.nqn}"
        self.volume = farflash.open_volume(place, digests=False)
        self.addCleanup(self.volume.close)
        #: What happened, in order.
        self.events: list[str] = []
        self.signalled = threading.Event()
        before = signal.signal(signal.SIGALRM, self.ring)
        self.addCleanup(signal.signal, signal.SIGALRM, before)

    def ring(self, *_: object) -> None:
        if "returned" in self.events:
            return  # Too late: the call is over.
        self.events.append("signalled")
        self.signalled.set()
        raise Signalled

    def release_after(self, *conditions: threading.Event, begin: Callable[[], None] = lambda: None) -> None:
        """Once a write is held calls begin, and releases it some time after the conditions."""

        def work() -> None:
            held = self.proxy.held.wait(PATIENCE)
            begin()
            met = all(condition.wait(PATIENCE) for condition in conditions)
            for _ in range(ROUND_TRIPS):
                self.volume.flush()
            self.events.append("released" if held and met else "gave up")
            self.proxy.release()

        thread = threading.Thread(target=work)
        thread.start()
        self.addCleanup(thread.join)

    def raises(self, kind: type[BaseException], call: Callable[[], object]) -> None:
        with self.assertRaises(kind):
            try:
                call()
            finally:
                self.events.append("returned")

    @staticmethod
    def signal() -> None:
        os.kill(os.getpid(), signal.SIGALRM)


class Unfinished(Proxied):
    """Calls that fail, or that a signal interrupts."""

    def test_of_a_write_that_failed(self) -> None:
        self.proxy.fail_at, self.proxy.hold_at = 0, STRIDE // BLOCK
        self.release_after(self.proxy.failed)
        self.raises(farflash.Damaged, lambda: self.volume.write(0, b"1" * 4 * STRIDE))
        self.assertEqual(self.events, ["released", "returned"])
        self.volume.write(0, b"2" * 2 * STRIDE)
        self.assertEqual(self.volume.read(0, 2 * STRIDE), b"2" * 2 * STRIDE)

    def test_of_a_long_write_that_was_interrupted(self) -> None:
        self.proxy.hold_at = STRIDE // BLOCK
        self.release_after(self.signalled, begin=self.signal)
        self.raises(Signalled, lambda: self.volume.write(0, b"1" * 4 * STRIDE))
        self.assertEqual(self.events, ["signalled", "released", "returned"])
        self.volume.write(0, b"2" * 4 * STRIDE)
        self.assertEqual(self.volume.read(0, 4 * STRIDE), b"2" * 4 * STRIDE)

    def test_of_a_single_request_that_was_interrupted(self) -> None:
        """A write of one block, as one command."""
        self.proxy.hold_at = 5
        self.release_after(self.signalled, begin=self.signal)
        self.raises(Signalled, lambda: self.volume.write(5 * BLOCK, b"1" * BLOCK))
        self.assertEqual(self.events, ["signalled", "released", "returned"])

    def test_a_second_signal_does_not_wait(self) -> None:
        self.proxy.hold_at = 5
        returned = threading.Event()

        def begin() -> None:
            self.signal()
            self.signalled.wait(PATIENCE)
            self.signal()

        self.release_after(self.signalled, returned, begin=begin)
        data = bytearray(b"1" * BLOCK)
        self.raises(Signalled, lambda: self.volume.write(5 * BLOCK, data))
        self.assertEqual(self.events, ["signalled", "signalled", "returned"])
        with self.assertRaises(BufferError):
            data.append(0)  # It is still to be written from.
        returned.set()
        deadline = time.monotonic() + PATIENCE
        while len(data) == BLOCK and time.monotonic() < deadline:
            self.volume.write(0, b"2" * BLOCK)  # Lets go of what is not needed any more.
            with contextlib.suppress(BufferError):
                data.append(0)
        self.assertEqual(len(data), BLOCK + 1)

    def test_a_buffer_is_the_callers_again_when_the_read_into_it_is_interrupted(self) -> None:
        self.volume.write(0, b"1" * 4 * STRIDE)
        self.proxy.hold_at = STRIDE // BLOCK
        returned = threading.Event()
        self.release_after(self.signalled, returned, begin=self.signal)
        buffer = bytearray(4 * STRIDE)
        self.raises(Signalled, lambda: self.volume.readinto(0, buffer))
        buffer.append(0)  # A BufferError if anybody else has a view of it.
        buffer[:] = bytes(len(buffer))
        returned.set()
        self.assertEqual(self.volume.read(STRIDE, STRIDE), b"1" * STRIDE)
        self.assertEqual(buffer, bytes(len(buffer)))


class WithoutCopies(Proxied):
    """What is written is sent from the caller's memory, and what is read lands there: seen while a call waits."""

    def during(self, work: Callable[[], None]) -> None:
        """Once a request is held does some work, and releases it."""

        def guarded() -> None:
            try:
                assert self.proxy.held.wait(PATIENCE)
                work()
                self.events.append("worked")
            finally:
                self.proxy.release()

        thread = threading.Thread(target=guarded)
        thread.start()
        self.addCleanup(thread.join)

    def test_a_write(self) -> None:
        data = bytearray(b"1" * MIB)
        self.proxy.hold_at = 0

        def change() -> None:
            data[5 * BLOCK : 6 * BLOCK] = b"2" * BLOCK

        self.during(change)
        self.volume.write(0, data)
        self.assertEqual(self.events, ["worked"])
        self.assertEqual(self.volume.read(4 * BLOCK, 2 * BLOCK), b"1" * BLOCK + b"2" * BLOCK)
        data.append(0)  # A BufferError if anybody else has a view of it.

    def test_what_is_compared_and_swapped(self) -> None:
        """Its memory is lent while the call waits, and the caller's when it has returned."""
        data, other = bytearray(b"1" * BLOCK), bytearray(b"2" * BLOCK)
        lent = []

        def see() -> None:
            for buffer in (data, other):
                try:
                    buffer.append(0)
                    buffer.pop()
                except BufferError:
                    lent.append(buffer)

        self.volume.write(0, data)
        calls = [
            (lambda: self.volume.compare(0, data), [data]),
            (lambda: self.volume.compare_and_swap(0, data, other), [data, other]),
            (lambda: not self.volume.compare_and_swap(0, data, other), [data, other]),
        ]
        for call, buffers in calls:
            lent.clear()
            self.proxy.hold_at = 0
            self.proxy.held.clear()
            self.during(see)
            self.assertTrue(call())
            self.assertEqual(lent, buffers)
            lent.clear()
            see()
            self.assertEqual(lent, [])
        self.assertEqual(self.volume.read(0, BLOCK), other)

    def test_a_write_of_asyncio(self) -> None:
        data = bytearray(b"1" * MIB)
        self.proxy.hold_at = 0

        def change() -> None:
            data[5 * BLOCK : 6 * BLOCK] = b"2" * BLOCK

        async def write() -> None:
            await farflash.AsyncVolume(self.volume).write(0, data)

        self.during(change)
        asyncio.run(write())
        self.assertEqual(self.events, ["worked"])
        self.assertEqual(self.volume.read(4 * BLOCK, 2 * BLOCK), b"1" * BLOCK + b"2" * BLOCK)
        data.append(0)  # A BufferError if anybody else has a view of it.

    def test_a_read(self) -> None:
        self.volume.write(0, b"1" * 4 * STRIDE)
        buffer = bytearray(4 * STRIDE)
        # The second of the commands in which the first request is done.
        self.proxy.hold_at = self.volume.transfer_size_max // BLOCK

        def see() -> None:
            deadline = time.monotonic() + PATIENCE
            while buffer[0] == 0:
                assert time.monotonic() < deadline, "nothing lands while the call waits"

        self.during(see)
        self.volume.readinto(0, buffer)
        self.assertEqual((self.events, buffer), (["worked"], b"1" * 4 * STRIDE))


if __name__ == "__main__":
    unittest.main()
