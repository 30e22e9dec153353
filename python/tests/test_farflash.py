"""The package against a real server. Run by `make libraries-test`."""

from __future__ import annotations

import array
import ast
import asyncio
import ctypes
import errno
import io
import os
import pydoc
import random
import signal
import threading
import time
import unittest
from pathlib import Path
from typing import Any

import farflash
from server import MIB, Etcd, Server, directory, image, run

BLOCK = 4096
PACKAGE = Path(farflash.__file__).parent
EXAMPLES = Path(__file__).parent.parent / "examples"


class Basics(unittest.TestCase):
    """What needs one server that stays."""

    @classmethod
    def setUpClass(cls) -> None:
        cls.server = Server("mem:512MiB")
        cls.addClassCleanup(cls.server.kill)
        cls.cluster = farflash.Cluster(["http://127.0.0.1:1", cls.server.api])

    def volume(self, size: int = MIB, *, metadata: int = 0, **options: object) -> farflash.Volume:
        """A new volume, deleted after the test."""
        name = f"{self.id().rsplit('.', 1)[-1].replace('_', '-')[:58]}-{metadata}"
        self.cluster.create_volume(name, size, metadata=metadata)
        self.addCleanup(self.cluster.delete_volume, name, lose_data=True)
        volume = self.cluster.open_volume(name, **options)
        self.addCleanup(volume.close)
        return volume

    def test_long_reads_and_writes(self) -> None:
        volume = self.volume(64 * MIB)
        data = random.Random(1).randbytes(17 * MIB)
        self.assertEqual(volume.write(BLOCK, data), len(data))
        self.assertEqual(volume.read(BLOCK, len(data)), data)
        self.assertTrue(volume.compare(BLOCK, data))
        self.assertFalse(volume.compare(0, data))
        self.assertEqual(volume.size, 64 * MIB)
        self.assertGreaterEqual(volume.atomic_write_size, MIB)

    def test_a_volume_says_with_what_it_may_fail(self) -> None:
        domain = self.volume().failure_domain()
        assert domain is not None
        self.assertEqual((domain["device"], domain["health"]), ("mem:512MiB", "good"))
        self.assertIsNone(domain["model"])

    def test_buffers_of_all_kinds(self) -> None:
        volume = self.volume()
        for data in (bytearray(b"a" * BLOCK), memoryview(b"xa" * BLOCK)[:BLOCK], array.array("B", bytes(BLOCK))):
            volume.write(0, data)
            self.assertEqual(volume.read(0, BLOCK), bytes(data))
        target = bytearray(b"-" * 3 * BLOCK)
        volume.write(0, b"z" * BLOCK)
        self.assertEqual(volume.readinto(0, memoryview(target)[BLOCK : 2 * BLOCK]), BLOCK)
        self.assertEqual(target, b"-" * BLOCK + b"z" * BLOCK + b"-" * BLOCK)
        with self.assertRaisesRegex(BufferError, "read-only"):
            volume.readinto(0, bytes(BLOCK))
        with self.assertRaises(BufferError):
            volume.write(0, memoryview(bytes(2 * BLOCK))[::2])
        with self.assertRaises((BufferError, TypeError)):
            volume.write(0, "text")
        self.assertEqual(volume.read(0, 0), b"")

    def test_elements_of_any_type_are_bytes(self) -> None:
        volume = self.volume()
        words = array.array("I", range(BLOCK // 4))
        kinds: list[Any] = [
            words,
            array.array("d", [1.5] * (BLOCK // 8)),
            memoryview(words).cast("B").cast("H", (BLOCK // 64, 32)),
            (ctypes.c_uint16 * (BLOCK // 2))(*range(BLOCK // 2)),
        ]
        for data in kinds:
            with self.subTest(memoryview(data).format):
                expected = memoryview(data).tobytes()
                self.assertEqual(volume.write(0, data), BLOCK)
                self.assertEqual(volume.read(0, BLOCK), expected)
                self.assertTrue(volume.compare(0, data))
                ctypes.memset((ctypes.c_char * BLOCK).from_buffer(data), 0, BLOCK)
                self.assertEqual(volume.readinto(0, data), BLOCK)
                self.assertEqual(memoryview(data).tobytes(), expected)
                file = farflash.VolumeFile(volume, closes_volume=False)
                self.assertEqual(file.write(data), BLOCK)
                ctypes.memset((ctypes.c_char * BLOCK).from_buffer(data), 0, BLOCK)
                file.seek(0)
                self.assertEqual(file.readinto(data), BLOCK)
                self.assertEqual(memoryview(data).tobytes(), expected)
        objects = (ctypes.py_object * (BLOCK // 8))()
        for call in (volume.write, volume.readinto):
            with self.assertRaisesRegex(BufferError, "Python objects"):
                call(0, objects)

    def test_each_mistake_has_its_exception(self) -> None:
        volume = self.volume()
        cases = [
            (farflash.Misaligned, "5 bytes at offset 0", lambda: volume.read(0, 5)),
            (farflash.Misaligned, "offset 1", lambda: volume.write(1, bytes(BLOCK))),
            (farflash.OutOfRange, "within the volume", lambda: volume.read(MIB, BLOCK)),
            (farflash.OutOfRange, "within", lambda: volume.deallocate(2**64 - BLOCK, BLOCK)),
            (farflash.InvalidArgument, "replaced by", lambda: volume.compare_and_swap(0, b"", bytes(BLOCK))),
            (farflash.InvalidArgument, "volume name", lambda: self.cluster.create_volume("V", MIB)),
            (farflash.InvalidArgument, "4096", lambda: self.cluster.create_volume("w", 5)),
            (farflash.NotFound, "no volume `w`", lambda: self.cluster.open_volume("w")),
            (farflash.InvalidArgument, "token", lambda: self.cluster.open_volume("w", token="x")),
            (farflash.InvalidArgument, "no NQN", lambda: farflash.open_volume("tcp://127.0.0.1:1")),
            (farflash.InvalidArgument, "no API address", lambda: farflash.open_volume("w")),
            (farflash.InvalidArgument, "no API address", lambda: farflash.Cluster("ftp://x")),
            (farflash.Unreachable, "cannot be reached", farflash.Cluster("http://127.0.0.1:1").list_volumes),
            (farflash.InvalidArgument, "volume is empty: give", lambda: self.cluster.open_volume("")),
            (farflash.InvalidArgument, "volume is empty: give", lambda: self.cluster.delete_volume(" ")),
            (farflash.InvalidArgument, "name is empty: give", lambda: self.cluster.create_volume("", MIB)),
            (TypeError, "name or id, or its place.*, not NoneType", lambda: self.cluster.open_volume(None)),
            (TypeError, "name or id.*, not NoneType", lambda: farflash.open_file(None)),
            (TypeError, "name or id.*, not int", lambda: self.cluster.show_volume(7)),
            (ValueError, "depth", lambda: self.cluster.open_volume("w", depth=0)),
            (ValueError, "size is from 0", lambda: self.cluster.create_volume("w", -1)),
            (ValueError, "core is from 0", lambda: self.cluster.create_volume("w", MIB, core=2**32)),
            (ValueError, "a rate is from 0", lambda: self.cluster.create_volume("w", MIB, rates=(1, -1))),
            (ValueError, "size is from 0", lambda: self.cluster.resize_volume("w", 2**64)),
            (ValueError, "share is from 0", lambda: self.cluster.set_slo("w", share=-1)),
            (ValueError, "grace_seconds is from 0", lambda: self.cluster.change_auth("w", grace_seconds=-1)),
        ]
        for kind, says, call in cases:
            with self.subTest(says):
                with self.assertRaisesRegex(kind, says) as caught:
                    call()
                if issubclass(kind, farflash.Error):
                    self.assertIsNotNone(caught.exception.errno)
        name = self.cluster.list_volumes()[0].name
        with self.assertRaises(FileExistsError) as caught:
            self.cluster.create_volume(name, MIB)
        self.assertEqual(caught.exception.errno, errno.EEXIST)
        with directory() as files:
            token = Path(files) / "token"
            for text, says in (("a\nb\n", "more than one line"), ("# nothing\n", "no token in it"), ("a b", "a space")):
                token.write_text(text)
                with self.assertRaisesRegex(farflash.InvalidArgument, says):
                    farflash.Cluster(self.server.api, api_token_file=token)
            token.write_text("\ufeff# of acme, " + "x" * 300 + "\n\nffk_1\n", encoding="utf-8")
            farflash.Cluster(self.server.api, api_token_file=token).list_volumes()
        for api in (self.server.api + ",", "," + self.server.api):
            with self.assertRaisesRegex(farflash.InvalidArgument, "it is empty"):
                farflash.Cluster(api)
        volume.close()
        with self.assertRaises(farflash.Closed):
            volume.read(0, BLOCK)
        self.assertTrue(issubclass(farflash.NotFound, farflash.Error) and issubclass(farflash.Error, OSError))

    def test_a_device_without_room_is_called_so(self) -> None:
        """A volume may be larger than the device; what does not fit is refused, and what is there is not damaged."""
        with Server("mem:64MiB") as server:
            cluster = farflash.Cluster(server.api)
            cluster.create_volume("thin", 256 * MIB)
            with cluster.open_volume("thin") as volume:
                volume.write(0, b"a" * MIB)
                with self.assertRaises(farflash.NoSpace) as caught:
                    volume.write(MIB, b"b" * (128 * MIB))
                self.assertEqual(caught.exception.errno, errno.ENOSPC)
                self.assertEqual(volume.read(0, MIB), b"a" * MIB)
                volume.deallocate(MIB, 255 * MIB)
                self.assertEqual(volume.write(200 * MIB, b"c" * MIB), MIB)

    def test_an_offset_or_a_length_that_cannot_be_is_called_so(self) -> None:
        volume, block = self.volume(), bytes(BLOCK)
        with_offset: list[tuple[str, tuple[Any, ...]]] = [
            ("readinto", (bytearray(BLOCK),)),
            ("write", (block,)),
            ("write_tx", (block,)),
            ("compare", (block,)),
            ("compare_and_swap", (block, block)),
            ("write_ex", (block, b"")),
            ("write_tx_ex", (block, b"")),
            ("compare_ex", (block, b"")),
            ("compare_and_swap_ex", ((block, b""), (block, b""))),
        ]
        with_both = [(name, (BLOCK,)) for name in ("read", "read_ex", "write_zeroes", "deallocate")]

        async def refused(kind: type[Exception], says: str, name: str, *arguments: Any) -> None:
            with self.subTest(name, arguments=arguments):
                with self.assertRaisesRegex(kind, says):
                    getattr(volume, name)(*arguments)
                with self.assertRaisesRegex(kind, says):
                    await getattr(farflash.AsyncVolume(volume), name)(*arguments)

        async def all_refused() -> None:
            for name, arguments in with_offset + with_both:
                for offset in (-1, -BLOCK, 2**64):
                    says = f"{offset} is not an offset in a volume: give bytes"
                    await refused(farflash.InvalidArgument, says, name, offset, *arguments)
                await refused(TypeError, "", name, "0", *arguments)
            for name, _ in with_both:
                for length in (-1, 2**63):
                    says = f"{length} is not a length in a volume: give bytes"
                    await refused(farflash.InvalidArgument, says, name, 0, length)
                await refused(TypeError, "", name, 0, 4096.0)

        asyncio.run(all_refused())

    def test_nothing_is_done_of_a_long_call_that_is_refused(self) -> None:
        volume = self.volume(8 * MIB)
        for length, error in ((8 * MIB + BLOCK, farflash.OutOfRange), (8 * MIB - 1, farflash.Misaligned)):
            with self.assertRaises(error):
                volume.write(0, b"a" * length)
            with self.assertRaises(error):
                volume.write_ex(0, b"a" * length, b"")
            buffer = bytearray(b"b" * length)
            with self.assertRaises(error):
                volume.readinto(0, buffer)
            self.assertEqual(buffer.count(b"b"), length)
        self.assertEqual(volume.read(0, 8 * MIB), bytes(8 * MIB))

    def test_no_room_is_made_for_what_the_volume_has_not(self) -> None:
        far = 2**50  # More than any machine has addresses for.
        with_metadata = self.volume(metadata=8)
        volume = self.volume()

        async def refused(volume: farflash.Volume, name: str) -> None:
            for offset, length in ((0, far), (MIB, far), (2**63, far), (2**64 - BLOCK, far)):
                with self.subTest(name, offset=offset), self.assertRaises(farflash.OutOfRange):
                    getattr(volume, name)(offset, length)
                with self.subTest(name, offset=offset), self.assertRaises(farflash.OutOfRange):
                    await getattr(farflash.AsyncVolume(volume), name)(offset, length)

        for name in ("read", "read_ex"):
            asyncio.run(refused(volume, name))
        asyncio.run(refused(with_metadata, "read_ex"))
        # What it has by now it is read, though it had not when it was opened.
        self.cluster.resize_volume(str(volume.uuid), 8 * MIB)
        volume.write(MIB, b"a" * BLOCK)
        expected = b"a" * BLOCK + bytes(6 * MIB - BLOCK)
        self.assertEqual(volume.read(MIB, 6 * MIB), expected)
        self.assertEqual(volume.read_ex(MIB, 6 * MIB), (expected, b""))

        async def read() -> bytes:
            return await farflash.AsyncVolume(volume).read(MIB, 6 * MIB)

        self.assertEqual(asyncio.run(read()), expected)

    def test_a_transactional_write_is_whole_or_refused(self) -> None:
        volume, data = self.volume(16 * MIB), random.Random(4).randbytes(MIB)
        limit = volume.atomic_write_size
        data = data * (limit // MIB)
        self.assertEqual(volume.write_tx(BLOCK, bytearray(data)), limit)
        for longer in (limit + BLOCK, 4 * MIB + BLOCK):
            with self.assertRaisesRegex(farflash.TooLarge, f"{longer} bytes at once .* limit of {limit}"):
                volume.write_tx(BLOCK, bytes(longer))
        with self.assertRaises(farflash.Misaligned):
            volume.write_tx(0, b"x")

        async def work() -> None:
            own = farflash.AsyncVolume(volume)
            buffer = bytearray(b"a" * (limit + BLOCK))
            with self.assertRaises(farflash.InvalidArgument):
                await own.write_tx(BLOCK, buffer)
            buffer.append(0)  # A BufferError if anybody else has a view of it.
            await own.write_tx(0, memoryview(buffer)[:BLOCK])

        asyncio.run(work())
        expected = b"a" * BLOCK + data + bytes(BLOCK)
        self.assertEqual(volume.read(0, len(expected)), expected)

    def test_compare_and_swap(self) -> None:
        volume = self.volume()
        self.assertTrue(volume.compare_and_swap(0, bytes(BLOCK), b"a" * BLOCK))
        swap = volume.compare_and_swap(0, b"a" * 77 + bytes(BLOCK - 77), b"b" * BLOCK)
        self.assertEqual(swap, farflash.Swap(False, 77))
        self.assertFalse(swap)
        self.assertEqual(volume.read(0, BLOCK), b"a" * BLOCK)

    def test_blocks_and_their_metadata_are_one(self) -> None:
        """One block, and more than is done at once."""
        rng = random.Random(3)
        for each in (8, 16, 64):
            volume = self.volume(16 * MIB, metadata=each)
            self.assertEqual(volume.metadata_size, each)
            self.assertEqual(self.cluster.show_volume(volume.uuid).metadata_size, each)
            for offset, count in ((0, 1), (BLOCK, 1500)):
                data, metadata = rng.randbytes(count * BLOCK), rng.randbytes(count * each)
                self.assertEqual(volume.write_ex(offset, data, memoryview(metadata)), len(data))
                self.assertEqual(volume.read_ex(offset, len(data)), (data, metadata))
                self.assertIs(volume.compare_ex(offset, bytearray(data), metadata), True)
                other = metadata[:-1] + bytes([metadata[-1] ^ 1])
                self.assertIs(volume.compare_ex(offset, data, other), False)

            old, new = volume.read_ex(0, 2 * BLOCK), (b"n" * 2 * BLOCK, b"m" * 2 * each)
            other = bytearray(old[1])
            other[each + 3] ^= 1
            swap = volume.compare_and_swap_ex(0, (old[0], other), new)
            self.assertEqual(swap, farflash.Swap(False, 2 * BLOCK + each + 3))
            self.assertEqual(volume.read_ex(0, 2 * BLOCK), old)
            self.assertTrue(volume.compare_and_swap_ex(0, old, new))
            self.assertEqual(volume.read_ex(0, 2 * BLOCK), new)

            volume.deallocate(0, BLOCK)
            volume.write_zeroes(BLOCK, BLOCK)
            self.assertEqual(volume.read_ex(0, 2 * BLOCK), (bytes(2 * BLOCK), bytes(2 * each)))

    def test_a_transactional_write_of_blocks_is_whole_or_refused(self) -> None:
        rng = random.Random(5)
        for each in (8, 16, 64):
            volume = self.volume(16 * MIB, metadata=each)
            limit = volume.atomic_write_size
            count = limit // BLOCK
            data, metadata = rng.randbytes(limit), rng.randbytes(count * each)
            self.assertEqual(volume.write_tx_ex(BLOCK, bytearray(data), memoryview(metadata)), limit)
            for longer in (count + 1, 2 * count + 1):
                with self.assertRaisesRegex(farflash.TooLarge, f"{longer * BLOCK} bytes at once .* limit of {limit}"):
                    volume.write_tx_ex(BLOCK, bytes(longer * BLOCK), bytes(longer * each))
            with self.assertRaisesRegex(farflash.InvalidArgument, "1 bytes of metadata were given"):
                volume.write_tx_ex(0, bytes(BLOCK), b"x")
            one, own = b"a" * BLOCK, b"b" * each

            async def work() -> None:
                aio = farflash.AsyncVolume(volume)
                with self.assertRaises(farflash.TooLarge):
                    await aio.write_tx_ex(BLOCK, bytes(limit + BLOCK), bytes((count + 1) * each))
                await aio.write_tx_ex(0, one, own)

            asyncio.run(work())
            expected = (one + data, own + metadata)
            self.assertEqual(volume.read_ex(0, limit + BLOCK), expected)

    def test_mistakes_about_metadata(self) -> None:
        volume, without = self.volume(metadata=8), self.volume()
        file = farflash.VolumeFile(volume, closes_volume=False)
        one, own = bytes(BLOCK), bytes(8)
        cases = [
            (farflash.InvalidArgument, "8 bytes of metadata each", lambda: volume.read(0, BLOCK)),
            (farflash.InvalidArgument, "8 bytes of metadata each", lambda: volume.readinto(0, bytearray(BLOCK))),
            (farflash.InvalidArgument, "8 bytes of metadata each", lambda: volume.write(0, one)),
            (farflash.InvalidArgument, "8 bytes of metadata each", lambda: volume.compare(0, one)),
            (farflash.InvalidArgument, "8 bytes of metadata each", lambda: volume.compare_and_swap(0, one, one)),
            (farflash.InvalidArgument, "8 bytes of metadata each", lambda: file.read(5)),
            (farflash.InvalidArgument, "7 bytes of metadata were given", lambda: volume.write_ex(0, one, own[1:])),
            (farflash.InvalidArgument, "7 bytes of metadata were given", lambda: volume.compare_ex(0, one, own[1:])),
            (farflash.InvalidArgument, "0 bytes of metadata", lambda: volume.compare_and_swap_ex(0, (one, b""), (one, own))),
            (farflash.InvalidArgument, "replaced by", lambda: volume.compare_and_swap_ex(0, (b"", b""), (one, own))),
            (farflash.Misaligned, "5 bytes", lambda: volume.write_ex(0, b"hello", own)),
            (farflash.Misaligned, "5 bytes", lambda: volume.write_tx_ex(0, b"hello", own)),
            (farflash.InvalidArgument, "8 bytes of metadata each", lambda: volume.write_tx(0, one)),
            (farflash.InvalidArgument, "have no metadata", lambda: without.write_tx_ex(0, one, own)),
            (farflash.Misaligned, "offset 1", lambda: volume.read_ex(1, BLOCK)),
            (farflash.OutOfRange, "within", lambda: volume.write_ex(MIB, one, own)),
            (farflash.InvalidArgument, "have no metadata", lambda: without.write_ex(0, one, own)),
            (farflash.InvalidArgument, "8, 16 or 64", lambda: self.cluster.create_volume("w", MIB, metadata=12)),
            (TypeError, "", lambda: volume.compare_and_swap_ex(0, one, one)),
        ]
        for kind, says, call in cases:
            with self.subTest(says), self.assertRaisesRegex(kind, says):
                call()
        self.assertEqual(volume.read_ex(0, BLOCK), (one, own))
        self.assertEqual(without.metadata_size, 0)
        without.write_ex(0, b"a" * BLOCK, b"")
        self.assertEqual(without.read_ex(0, BLOCK), (b"a" * BLOCK, b""))

    def test_asyncio_with_metadata(self) -> None:
        volume = farflash.AsyncVolume(self.volume(16 * MIB, metadata=16))

        def block(number: int) -> tuple[bytes, bytes]:
            return number.to_bytes(8) * 512, number.to_bytes(8) * 2

        async def work() -> None:
            await asyncio.gather(*(volume.write_ex(n * BLOCK, *block(n)) for n in range(1000)))
            reads = await asyncio.gather(*(volume.read_ex(n * BLOCK, BLOCK) for n in range(1000)))
            self.assertEqual(reads, [block(n) for n in range(1000)])
            data, metadata = await volume.read_ex(0, 1000 * BLOCK)
            self.assertEqual((data[-8:], metadata[-8:]), ((999).to_bytes(8), (999).to_bytes(8)))
            self.assertIs(await volume.compare_ex(0, data, metadata), True)
            self.assertIs(await volume.compare_ex(0, data, bytes(len(metadata))), False)
            self.assertTrue(await volume.compare_and_swap_ex(BLOCK, block(1), block(7)))
            swap = await volume.compare_and_swap_ex(BLOCK, (block(7)[0], block(1)[1]), block(1))
            self.assertEqual(swap, farflash.Swap(False, BLOCK + 7))
            with self.assertRaisesRegex(farflash.InvalidArgument, "16 bytes of metadata each"):
                await volume.read(0, BLOCK)
            with self.assertRaisesRegex(farflash.InvalidArgument, "1 bytes of metadata were given"):
                await volume.write_ex(0, bytes(BLOCK), b"x")

        asyncio.run(work())

    def test_many_threads(self) -> None:
        volume = self.volume(16 * MIB, connections=2)
        failures = []

        def work(number: int) -> None:
            try:
                for index in range(100):
                    offset = (number * 100 + index) * BLOCK
                    volume.write(offset, bytes([number]) * BLOCK)
                    assert volume.read(offset, BLOCK) == bytes([number]) * BLOCK
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(failures, [])

    def test_asyncio_with_thousands_outstanding(self) -> None:
        volume = farflash.AsyncVolume(self.volume(64 * MIB))

        async def work() -> None:
            count = 5000
            writes = [volume.write(n * BLOCK, n.to_bytes(8) * 512) for n in range(count)]
            await asyncio.gather(*writes)
            reads = [volume.read(n * BLOCK, BLOCK) for n in range(count)]
            for number, data in enumerate(await asyncio.gather(*reads)):
                self.assertEqual(data[:8], number.to_bytes(8))
            target = bytearray(2 * BLOCK)
            self.assertEqual(await volume.readinto(3 * BLOCK, memoryview(target)[BLOCK:]), BLOCK)
            self.assertEqual(target, bytes(BLOCK) + (3).to_bytes(8) * 512)
            swap = await volume.compare_and_swap(0, b"x" * BLOCK, bytes(BLOCK))
            self.assertEqual(swap, (False, 0))
            await volume.write_zeroes(0, BLOCK)
            await volume.deallocate(BLOCK, BLOCK)
            await volume.flush()
            self.assertIs(await volume.compare(0, bytes(2 * BLOCK)), True)
            with self.assertRaises(farflash.Misaligned):
                await volume.read(1, 1)
            with self.assertRaises(BufferError):
                volume.readinto(0, b"")
            long = volume.read(0, 32 * MIB)
            cancelled = volume.read(0, BLOCK)
            cancelled.cancel()
            self.assertEqual(len(await long), 32 * MIB)

        asyncio.run(work())
        asyncio.run(work())  # Another loop.

    def test_a_file_is_as_a_file_of_bytes(self) -> None:
        file = farflash.VolumeFile(self.volume())
        model, rng = bytearray(MIB), random.Random(2)
        for round in range(200):
            offset, data = rng.randrange(MIB), rng.randbytes(rng.randrange(20_000))
            fits = min(len(data), MIB - offset)
            file.seek(offset)
            self.assertEqual(file.write(data), fits, round)
            model[offset : offset + fits] = data[:fits]
            offset, length = rng.randrange(MIB), rng.randrange(20_000)
            file.seek(offset)
            got = file.read(length)
            self.assertEqual(got, model[offset : offset + len(got)], round)
            self.assertTrue(got)
        file.seek(0)
        self.assertEqual(file.readall(), model)
        self.assertEqual(file.read(1), b"")
        with self.assertRaises(OSError):
            file.write(b"x")
        with self.assertRaises(io.UnsupportedOperation):
            file.truncate(5)
        with self.assertRaises(OSError):
            file.seek(-1)

    def test_writers_of_one_block_do_not_undo_each_other(self) -> None:
        volume = self.volume()

        def work(number: int) -> None:
            file = farflash.VolumeFile(volume, closes_volume=False)
            for index in range(8):
                file.seek(index * 8 + number)
                file.write(bytes([97 + number]))

        threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(volume.read(0, BLOCK)[:64], b"abcdefgh" * 8)

    def test_a_buffered_file(self) -> None:
        volume = self.volume()
        with farflash.open_file(volume) as file:
            for number in range(5000):
                file.write(b"line %d\n" % number)
            file.seek(0)
            lines = [file.readline() for _ in range(5000)]
            self.assertEqual(lines[-1], b"line 4999\n")
            file.seek(10)
            file.write(b"!")
            file.seek(8)
            self.assertEqual(file.read(5), b"in! 1")
            text = io.TextIOWrapper(file)
            text.seek(0)
            self.assertEqual(text.readline(), "line 0\n")
            text.detach()
        with self.assertRaises(farflash.Closed):
            volume.read(0, BLOCK)

    def test_a_forked_child_is_told_to_open_its_own(self) -> None:
        volume = self.volume()
        child = os.fork()
        if child == 0:
            status = 1
            try:
                try:
                    volume.read(0, BLOCK)
                except farflash.Closed as error:
                    own = self.cluster.open_volume(volume.uuid)
                    own.write(0, b"c" * BLOCK)
                    status = 0 if "forked" in str(error) else 2
            finally:
                os._exit(status)
        self.assertEqual(os.waitpid(child, 0)[1], 0)
        self.assertEqual(volume.read(0, BLOCK), b"c" * BLOCK)

    def test_documentation_and_types_are_there(self) -> None:
        text = pydoc.plain(pydoc.render_doc(farflash))
        for name in ("create_volume", "compare_and_swap", "AsyncCluster", "AsyncVolume", "open_file"):
            self.assertIn(name, text)
        for name in farflash.__all__:
            self.assertTrue(name == "__version__" or getattr(farflash, name).__doc__, name)
        self.assertTrue((PACKAGE / "py.typed").exists())
        stub = ast.parse((PACKAGE / "_farflash.pyi").read_text())
        for declared in stub.body:
            if isinstance(declared, ast.ClassDef):
                native = getattr(farflash._farflash, declared.name)
                methods = {item.name for item in declared.body if isinstance(item, ast.FunctionDef)}
                have = {name for name in vars(native) if not name.startswith("__")}
                self.assertEqual({name for name in methods if not name.startswith("__")}, have)


class Placing(unittest.TestCase):
    """Where a new volume goes, and what it is promised, by all that there is to say about it."""

    SMALLER = "mem:128MiB"

    @classmethod
    def setUpClass(cls) -> None:
        ceiling = "reads-per-second=10000,writes-per-second=5000"
        more = ("--device", f"{cls.SMALLER},{ceiling}", "--host-name", "flash-1", "--label", "rack=r1")
        cls.server = Server("mem:256MiB", *more)
        cls.addClassCleanup(cls.server.kill)
        cls.cluster = farflash.Cluster(cls.server.api)

    def test_a_volume_goes_where_it_was_told(self) -> None:
        for name, on, device in (("a", "rack=r1", "mem:256MiB"), ("b", "flash-1", self.SMALLER)):
            created = self.cluster.create_volume(name, MIB, on=on, device=device)
            self.assertEqual((created.host, created.labels), ("flash-1", {"rack": "r1"}))
            with self.cluster.open_volume(name) as volume:
                domain = volume.failure_domain()
            said = (domain["host"], domain["labels"], domain["core"], domain["device"])
            self.assertEqual(said, ("flash-1", created.labels, created.core, device))
        core = created.core
        self.assertEqual(self.cluster.create_volume("c", MIB, core=core).core, core)
        for words in ({"on": "rack=r2"}, {"device": "mem:1MiB"}, {"core": 9999}):
            with self.assertRaisesRegex(farflash.InvalidArgument, str(*words.values())):
                self.cluster.create_volume("d", MIB, **words)

    def test_a_volume_is_promised_a_share_or_rates(self) -> None:
        create = self.cluster.create_volume
        self.assertEqual(create("s", MIB, share=30).slo, {"share": 30})
        rates = create("r", MIB, device=self.SMALLER, rates=(6000, 10)).slo
        self.assertEqual(rates, {"rate": {"reads_per_second": 6000, "writes_per_second": 10}})
        self.assertEqual(self.cluster.set_slo("r", share=7).slo, {"share": 7})
        self.assertEqual(self.cluster.set_slo("r", rates=(1, 2)).slo["rate"]["writes_per_second"], 2)
        with self.assertRaisesRegex(farflash.Error, "10000"):
            self.cluster.set_slo("r", rates=(20_000, 0))
        with self.assertRaisesRegex(farflash.Error, "no ceiling"):
            self.cluster.create_volume("t", MIB, device="mem:256MiB", rates=(1, 1))
        with self.assertRaisesRegex(ValueError, "not both"):
            create("t", MIB, share=1, rates=(1, 1))
        with self.assertRaisesRegex(ValueError, "either share or rates"):
            self.cluster.set_slo("r")


class Records(unittest.TestCase):
    """What a cluster says of its volumes."""

    def test_a_volume_whose_host_is_gone_is_told_from_one_that_is_served(self) -> None:
        with directory() as files, Etcd() as etcd:
            a = Server(image(files, "a"), *etcd.membership("a"))
            self.addCleanup(a.kill)
            b = Server(image(files, "b"), *etcd.membership("b"))
            self.addCleanup(b.kill)
            cluster = farflash.Cluster(b.api)
            created = {name: cluster.create_volume(name, MIB, on=name) for name in "ab"}
            for name, record in created.items():
                self.assertEqual((record.host, record.state, record.trouble), (name, "online", None))
                self.assertEqual(record.drive, farflash.Drive(record.drive.id, None, None, "good"))
            self.assertNotEqual(created["a"].drive.id, created["b"].drive.id)
            a.process.kill()
            deadline = time.monotonic() + 60
            records = {"a": created["a"]}
            # Its host is gone for good when its lease is over.
            while records["a"].drive.health and time.monotonic() < deadline:
                records = {record.name: record for record in cluster.list_volumes()}
            states = {name: record.state for name, record in records.items()}
            self.assertEqual(states, {"a": "unreachable", "b": "online"})
            drives = {name: record.drive for name, record in records.items()}
            gone = farflash.Drive(created["a"].drive.id, None, None, None)
            self.assertEqual(drives, {"a": gone, "b": created["b"].drive})

    def test_what_keeps_hosts_from_a_volume_is_told(self) -> None:
        said = {
            "name": "v",
            "id": "1",
            "nqn": "nqn",
            "size_bytes": MIB,
            "metadata_bytes": 0,
            "sector_bytes": 4096,
            "allocated_bytes": 0,
            "address": "192.0.2.1:4420",
            "portal": {"core": 0},
            "device": "mem:1MiB",
            "drive": {"id": "2", "model": "M", "serial": "S", "health": "degraded"},
            "host": "a",
            "labels": {},
            "slo": {"share": 100},
            "state": "online",
            "trouble": "its restrictions cannot be read",
        }
        record = farflash.VolumeRecord._of(said)
        self.assertEqual((record.state, record.trouble), ("online", said["trouble"]))
        self.assertEqual(record.drive, farflash.Drive("2", "M", "S", "degraded"))


class Encrypted(unittest.TestCase):
    def test_a_server_is_believed_by_its_certificate(self) -> None:
        """By the one that it has made, and not by that of another server."""
        with directory() as files:
            own, other = Path(files) / "own", Path(files) / "other"
            with Server("mem:256MiB", "--api-tls", str(own)) as server, Server("mem:64MiB", "--api-tls", str(other)):
                self.assertTrue(server.api.startswith("https://"))
                for trusted in ({}, {"api_ca": other / "certificate.pem"}):
                    foreign = farflash.Cluster(server.api, **trusted)
                    for call in (foreign.list_volumes, lambda: foreign.create_volume("v", MIB)):
                        with self.assertRaisesRegex(farflash.Untrusted, "certificate"):
                            call()
                for file in (own / "nowhere.pem", own / "key.pem"):
                    with self.assertRaisesRegex(farflash.InvalidArgument, str(file)):
                        farflash.Cluster(server.api, api_ca=file)
                cluster = farflash.Cluster(server.api, api_ca=str(own / "certificate.pem"))
                cluster.create_volume("v", MIB)
                with cluster.open_volume("v") as volume:
                    volume.write(0, b"a" * BLOCK)
                    self.assertEqual(volume.read(0, BLOCK), b"a" * BLOCK)


class Authentication(unittest.TestCase):
    def test_a_volume_from_its_making_to_its_end(self) -> None:
        with Server(auth=True) as server, directory() as files:
            cluster = farflash.Cluster(server.api)
            created = cluster.create_volume("db", MIB, share=50, networks=["127.0.0.0/8"])
            self.assertNotIn("DHHC", repr(created))
            token, controller = created.tokens.token, created.tokens.controller_token
            with self.assertRaisesRegex(farflash.PermissionDenied, "authentication"):
                cluster.open_volume("db")
            file = Path(files) / "token"
            file.write_text(token + "\n")
            with cluster.open_volume(created.id, token_file=file, controller_token=controller) as volume:
                volume.write(0, b"a" * BLOCK)
                self.assertEqual((volume.uuid, volume.nqn), (created.id, created.nqn))
                self.assertEqual(volume.address, created.address)
                resized = cluster.resize_volume("db", 2 * MIB)
                self.assertEqual((resized.size, resized.cut_off), (2 * MIB, None))
                volume.write(MIB, b"a" * BLOCK)
                for call in (lambda: cluster.resize_volume("db", MIB), lambda: cluster.delete_volume("db")):
                    with self.assertRaisesRegex(farflash.InUse, "holds 8 KiB and is open on"):
                        call()
                for size in (MIB, 3 * MIB):
                    with self.assertRaisesRegex(farflash.Changed, "has 2097152 bytes"):
                        cluster.resize_volume("db", size, lose_data=True, if_size=MIB)
                resized = cluster.resize_volume("db", MIB, lose_data=True, if_size=2 * MIB)
                self.assertEqual(resized.cut_off, farflash.CutOff(BLOCK, False))
                self.assertIsNone(cluster.show_volume("db").cut_off)
                tokens = cluster.change_auth("db")
                with self.assertRaises(PermissionError):
                    cluster.open_volume("db", token=token)
                with self.assertRaisesRegex(farflash.Unproven, "does not know the controller token: check"):
                    cluster.open_volume("db", token=tokens.token, controller_token=controller)
            place = f"tcp://{created.address}/{created.nqn}"
            with farflash.open_volume(place, token=tokens.token) as volume:
                self.assertEqual(volume.read(0, BLOCK), b"a" * BLOCK)
            record = cluster.restrict_volume("db", networks=["192.0.2.0/24"])
            self.assertEqual(record.restrictions["networks"], ["192.0.2.0/24"])
            with self.assertRaises(farflash.Error):
                cluster.open_volume("db", token=tokens.token)
            self.assertEqual([record.name for record in cluster.list_volumes()], ["db"])
            cluster.delete_volume("db", lose_data=True)
            with self.assertRaises(farflash.NotFound):
                cluster.show_volume("db")

    def test_a_volume_is_awaited_from_its_making_to_its_end(self) -> None:
        async def work(api: str) -> None:
            cluster = farflash.AsyncCluster(farflash.Cluster(api))
            created = await cluster.create_volume("db", MIB, share=50)
            names = [record.name for record in await cluster.list_volumes()]
            self.assertEqual((names, (await cluster.show_volume("db")).id), (["db"], created.id))
            with self.assertRaises(farflash.PermissionDenied):
                await cluster.open_volume("db")
            async with await cluster.open_volume("db", token=created.tokens.token) as volume:
                await volume.write(0, b"a" * BLOCK)
                domain = await volume.failure_domain()
                assert domain is not None
                self.assertEqual(domain, await asyncio.to_thread(volume.volume.failure_domain))
                self.assertEqual((domain["host"], domain["core"]), (created.host, created.core))
            with self.assertRaises(farflash.Closed):
                await volume.failure_domain()
            self.assertEqual((await cluster.resize_volume(created.id, 2 * MIB)).size, 2 * MIB)
            self.assertEqual((await cluster.set_slo("db", share=7)).slo, {"share": 7})
            tokens = await cluster.change_auth("db", cut=True)
            record = await cluster.restrict_volume("db", networks=["127.0.0.0/8"])
            self.assertEqual(record.restrictions["networks"], ["127.0.0.0/8"])
            async with await cluster.open_volume(created.id, token=tokens.token) as volume:
                self.assertEqual(await volume.read(0, BLOCK), b"a" * BLOCK)
            await cluster.delete_volume("db", lose_data=True)
            with self.assertRaises(farflash.NotFound):
                await cluster.show_volume("db")

        with Server(auth=True) as server:
            asyncio.run(work(server.api))

    def test_the_names_of_the_cluster_for_asyncio_are_those_of_the_other(self) -> None:
        def names(kind: type) -> set[str]:
            return {name for name in vars(kind) if not name.startswith("_")}

        self.assertEqual(names(farflash.AsyncCluster), names(farflash.Cluster))

    def test_the_examples_do_what_they_say(self) -> None:
        with Server(auth=True) as server:
            for example in ("volume.py", "asyncio_volume.py"):
                done = run(str(EXAMPLES / example), server.api)
                self.assertEqual((done.returncode, done.stdout[-5:]), (0, "done\n"), done)


class Recovery(unittest.TestCase):
    def test_a_killed_server_is_found_again_at_its_new_address(self) -> None:
        """Threads and tasks write numbers that go up; no acknowledged write is lost, and none fails."""
        with directory() as files, Server(image(files), auth=True) as server:
            cluster = farflash.Cluster(["http://127.0.0.1:1", server.api])
            token = cluster.create_volume("v", 16 * MIB).tokens.token
            volume = cluster.open_volume("v", token=token)
            acknowledged, stop, failures = [0] * 8, threading.Event(), []

            def block(writer: int, number: int) -> tuple[int, bytes]:
                return (writer * 16 + number % 16) * BLOCK, number.to_bytes(8) * 512

            def write(writer: int) -> None:
                while not stop.is_set():
                    volume.write(*block(writer, acknowledged[writer] + 1))
                    acknowledged[writer] += 1

            async def write_async(writer: int, own: farflash.AsyncVolume) -> None:
                while not stop.is_set():
                    await own.write(*block(writer, acknowledged[writer] + 1))
                    acknowledged[writer] += 1

            async def tasks() -> None:
                own = farflash.AsyncVolume(volume)
                await asyncio.gather(*(write_async(writer, own) for writer in range(4, 8)))

            def guarded(work, *arguments) -> None:
                try:
                    work(*arguments)
                except BaseException as error:
                    failures.append(error)

            threads = [threading.Thread(target=guarded, args=(write, n)) for n in range(4)]
            threads.append(threading.Thread(target=guarded, args=(lambda: asyncio.run(tasks()),)))
            for thread in threads:
                thread.start()

            def progress() -> None:
                goal = [number + 10 for number in acknowledged]
                while any(now < then for now, then in zip(acknowledged, goal)) and not failures:
                    stop.wait(0.001)

            for _ in range(2):
                progress()
                server.kill()
                server.start()
            progress()
            stop.set()
            for thread in threads:
                thread.join()
            self.assertEqual(failures, [])
            for writer, last in enumerate(acknowledged):
                for number in range(max(1, last - 15), last + 1):
                    offset, data = block(writer, number)
                    self.assertEqual(volume.read(offset, BLOCK), data)
            self.assertGreaterEqual(volume.reconnects, 2)
            volume.close()

    def test_a_waiting_call_is_interrupted_by_a_signal(self) -> None:
        class Alarm(Exception):
            pass

        def ring(*_: object) -> None:
            raise Alarm

        with Server() as server:
            cluster = farflash.Cluster(server.api)
            cluster.create_volume("v", MIB)
            volume = cluster.open_volume("v", recovery_timeout=1)
            server.pause()
            before = signal.signal(signal.SIGALRM, ring)
            self.addCleanup(signal.signal, signal.SIGALRM, before)
            asked = [cluster.list_volumes, lambda: cluster.show_volume("v"), lambda: cluster.open_volume("v")]
            for call in [lambda: volume.read(0, BLOCK), volume.failure_domain, *asked]:
                with self.assertRaises(Alarm):
                    signal.setitimer(signal.ITIMER_REAL, 0.2)
                    call()

    def test_the_interpreter_ends_with_requests_outstanding(self) -> None:
        source = """
import asyncio, threading, time, farflash
volume = farflash.open_volume("v")
threading.Thread(target=volume.read, args=(0, 4096), daemon=True).start()
async def main():
    own = farflash.AsyncVolume(volume)
    buffer = bytearray(4096)
    futures = [own.read(n * 4096, 4096) for n in range(200)] + [own.readinto(0, buffer)]
    await asyncio.sleep(0)
asyncio.run(main())
print("ends")
"""
        with Server() as server:
            farflash.Cluster(server.api).create_volume("v", MIB)
            done = run(source, server.api)
            self.assertEqual((done.returncode, done.stdout), (0, "ends\n"), done)
            # The same with a server that answers nothing.
            paused = source.replace("threading.Thread", "import os, signal; os.kill(int(os.environ['PAUSE']), signal.SIGSTOP)\nthreading.Thread")
            done = run(paused, server.api, PAUSE=str(server.process.pid))
            self.assertEqual((done.returncode, done.stdout), (0, "ends\n"), done)


if __name__ == "__main__":
    unittest.main()
