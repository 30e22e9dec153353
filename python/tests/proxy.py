"""Stands between the library and a server: has a write fail, and keeps a request from the server for a while.

For volumes that are opened with digests=False.
"""

from __future__ import annotations

import socket
import struct
import threading

CAPSULE, RESPONSE, WRITE, READ, COMPARE, SWAP = 4, 5, 1, 2, 5, 0x81
#: The status field of a completion: Write Fault, do not retry.
WRITE_FAULT = 0x8000 | 0x280 << 1


class Proxy:
    """Its threads end with their connections."""

    def __init__(self, portal: str) -> None:
        host, port = portal.rsplit(":", 1)
        self._portal = (host, int(port))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = "127.0.0.1:%d" % self._listener.getsockname()[1]
        #: Blocks with which the write begins that fails, and the read, write, compare or swap that is held.
        self.fail_at: int | None = None
        self.hold_at: int | None = None
        #: Set when the library was told of the failure, and when a request is held.
        self.failed, self.held = threading.Event(), threading.Event()
        self._kept: tuple[bytes, socket.socket] | None = None
        threading.Thread(target=self._accept, daemon=True).start()

    def release(self) -> None:
        """Passes on what is held."""
        assert self._kept
        pdu, target = self._kept
        target.sendall(pdu)

    def close(self) -> None:
        _end(self._listener)
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            near.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            far = socket.create_connection(self._portal)
            failing: set[bytes] = set()
            for work in (self._up, self._down):
                threading.Thread(target=work, args=(near, far, failing), daemon=True).start()

    def _up(self, near: socket.socket, far: socket.socket, failing: set[bytes]) -> None:
        for pdu in _pdus(near):
            if pdu[0] == CAPSULE and pdu[8] in (WRITE, READ, COMPARE, SWAP):
                (lba,) = struct.unpack_from("<Q", pdu, 8 + 40)
                if lba == self.fail_at and pdu[8] == WRITE:
                    self.fail_at = None
                    failing.add(bytes(pdu[10:12]))
                if lba == self.hold_at:
                    self.hold_at = None
                    self._kept = bytes(pdu), far
                    self.held.set()
                    continue
            if not _send(far, pdu):
                break
        _end(near, far)
        near.close()

    def _down(self, near: socket.socket, far: socket.socket, failing: set[bytes]) -> None:
        for pdu in _pdus(far):
            fails = pdu[0] == RESPONSE and bytes(pdu[20:22]) in failing
            if fails:
                failing.clear()
                struct.pack_into("<H", pdu, 22, WRITE_FAULT)
            if not _send(near, pdu):
                break
            if fails:
                self.failed.set()
        _end(near, far)
        far.close()


def _send(stream: socket.socket, pdu: bytearray) -> bool:
    try:
        stream.sendall(pdu)
    except OSError:
        return False
    return True


def _end(*streams: socket.socket) -> None:
    for stream in streams:
        try:
            stream.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass


def _pdus(stream: socket.socket):
    """What comes, PDU by PDU, as long as something does."""
    with stream.makefile("rb") as file:
        while True:
            try:
                head = file.read(8)
                if len(head) < 8:
                    return
                (length,) = struct.unpack_from("<I", head, 4)
                yield bytearray(head + file.read(length - 8))
            except OSError:
                return
