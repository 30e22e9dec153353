"""VolumeFile over a volume that fails when it is told to. No server."""

from __future__ import annotations

import io
import random
import unittest
from collections.abc import Callable

import farflash

BLOCK = 4096


class Stub:
    """As much of a volume as a file needs."""

    block_size = BLOCK

    def __init__(self, blocks: int) -> None:
        self.bytes = bytearray(blocks * BLOCK)
        #: Called before each request with its name and offset.
        self.before: Callable[[str, int], None] = lambda *_: None

    @property
    def size(self) -> int:
        return len(self.bytes)

    def read(self, offset: int, length: int) -> bytes:
        self.before("read", offset)
        return bytes(self.bytes[offset : offset + length])

    def readinto(self, offset: int, buffer: memoryview) -> int:
        self.before("readinto", offset)
        buffer[:] = self.bytes[offset : offset + len(buffer)]
        return len(buffer)

    def write(self, offset: int, data: memoryview) -> int:
        self.before("write", offset)
        self.bytes[offset : offset + len(data)] = data
        return len(data)

    def compare_and_swap(self, offset: int, expected: bytes, data: bytes) -> bool:
        self.before("compare_and_swap", offset)
        self.bytes[offset : offset + len(data)] = data
        return True

    def flush(self) -> None:
        pass

    def close(self) -> None:
        pass


class Signalled(Exception):
    """What a program's signal handler may raise."""


class FailingWrites(unittest.TestCase):
    """A write of parts of blocks at both ends and whole blocks in between, of which one does not succeed."""

    #: A part of block 0, blocks 1 to 3, a part of block 4.
    START, DATA = 100, bytes(range(1, 252)) * 66

    def setUp(self) -> None:
        self.volume = Stub(8)
        self.file = farflash.VolumeFile(self.volume)
        self.file.seek(self.START)

    def fail_at(self, request: str, offset: int, error: BaseException) -> None:
        def before(*now: object) -> None:
            if now == (request, offset):
                raise error

        self.volume.before = before

    def test_a_buffer_above_writes_to_the_right_place_when_it_can_again(self) -> None:
        for request, offset in (("read", 0), ("write", BLOCK), ("compare_and_swap", 4 * BLOCK)):
            for error in (farflash.Unreachable("gone"), KeyboardInterrupt(), Signalled()):
                with self.subTest(request=request, error=error):
                    self.setUp()
                    file = io.BufferedRandom(self.file, 1 << 16)
                    file.write(self.DATA)
                    self.fail_at(request, offset, error)
                    with self.assertRaises(type(error)):
                        file.flush()
                    self.volume.before = lambda *_: None
                    file.close()
                    expected = bytearray(8 * BLOCK)
                    expected[self.START : self.START + len(self.DATA)] = self.DATA
                    self.assertEqual(self.volume.bytes, expected)

    def test_what_was_written_before_an_error_counts(self) -> None:
        self.fail_at("write", BLOCK, farflash.Unreachable("gone"))
        self.assertEqual(self.file.write(self.DATA), BLOCK - self.START)
        self.assertEqual(self.file.tell(), BLOCK)
        with self.assertRaises(farflash.Unreachable):
            self.file.write(self.DATA)
        self.assertEqual(self.file.tell(), BLOCK)

    def test_what_a_signal_raises_is_raised_and_moves_nothing(self) -> None:
        for error in (KeyboardInterrupt(), Signalled()):
            self.fail_at("write", BLOCK, error)
            with self.assertRaises(type(error)):
                self.file.write(self.DATA)
            self.assertEqual(self.file.tell(), self.START)


class Reading(unittest.TestCase):
    def test_all_is_read_by_one_request(self) -> None:
        volume = Stub(64)
        volume.bytes[:] = random.Random(3).randbytes(len(volume.bytes))
        requests: list[tuple[str, int]] = []
        volume.before = lambda *request: requests.append(request)
        file = farflash.VolumeFile(volume)
        for start in (0, 1, BLOCK, 5 * BLOCK - 1, 64 * BLOCK - 1):
            file.seek(start)
            requests.clear()
            self.assertEqual(file.read(), volume.bytes[start:])
            self.assertEqual(requests, [("read", start - start % BLOCK)])
            self.assertEqual(file.tell(), volume.size)
        for start in (64 * BLOCK, 65 * BLOCK + 1):
            file.seek(start)
            self.assertEqual((file.readall(), file.tell()), (b"", start))
        with io.BufferedRandom(file, 1 << 14) as buffered:
            buffered.seek(10)
            buffered.read(1)
            self.assertEqual(buffered.read(), volume.bytes[11:])

    def test_a_closed_file_refuses_everything(self) -> None:
        file = farflash.VolumeFile(Stub(1))
        file.close()
        file.close()
        for call in (file.flush, file.readall, file.tell, lambda: file.write(b"x"), lambda: file.seek(0)):
            with self.assertRaises(ValueError):
                call()


if __name__ == "__main__":
    unittest.main()
