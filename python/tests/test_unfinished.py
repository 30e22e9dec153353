"""Of a call that raised nothing is carried out later: what is written next stays."""

from __future__ import annotations

import os
import signal
import threading
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


class Unfinished(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        cls.server = Server()
        cls.addClassCleanup(cls.server.kill)
        cls.cluster = farflash.Cluster(cls.server.api)

    def setUp(self) -> None:
        name = self.id().rsplit(".", 1)[-1].replace("_", "-")[:60]
        created = self.cluster.create_volume(name, 64 * MIB)
        self.addCleanup(self.cluster.delete_volume, name)
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
        self.raises(Signalled, lambda: self.volume.write(5 * BLOCK, b"1" * BLOCK))
        returned.set()
        self.assertEqual(self.events, ["signalled", "signalled", "returned"])


if __name__ == "__main__":
    unittest.main()
