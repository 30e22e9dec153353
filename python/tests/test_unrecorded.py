"""What is told of changes whose outcome the server's audit log could not take."""

from __future__ import annotations

import asyncio
import os
import unittest
from pathlib import Path
from unittest import mock

import farflash
from server import MIB, FullLog, directory


class Unrecorded(unittest.TestCase):
    """Each change is made on a server whose log has no room for its second line."""

    def setUp(self) -> None:
        files = directory()
        self.addCleanup(files.cleanup)
        self.server = FullLog(Path(files.name) / "audit.jsonl")
        self.addCleanup(self.server.kill)
        self.cluster = farflash.Cluster(self.server.api)

    def test_a_change_is_done_and_its_record_is_said_to_be_incomplete(self) -> None:
        with self.assertNoLogs("farflash"):
            self.cluster.create_volume("aa", MIB)
        self.assertEqual(self.cluster.incomplete_records, 0)
        self.server.leave_half()
        with self.assertLogs("farflash", "WARNING") as said:
            created = self.cluster.create_volume("ab", MIB)
        self.assertEqual(len(said.output), 1)
        self.assertIn("audit log", said.output[0])
        self.assertEqual(self.cluster.show_volume("ab").id, created.id)
        self.assertEqual(self.cluster.incomplete_records, 1)
        # Nothing of this one can be recorded: it is not made, and nothing is incomplete.
        with self.assertNoLogs("farflash"), self.assertRaisesRegex(farflash.Unreachable, "recorded"):
            self.cluster.create_volume("ac", MIB)
        self.assertEqual(self.cluster.incomplete_records, 1)

    def test_it_is_said_of_each_kind_of_change(self) -> None:
        changes = {
            "resize_volume": lambda cluster: cluster.resize_volume("aa", MIB),
            "set_slo": lambda cluster: cluster.set_slo("aa", share=100),
            "change_auth": lambda cluster: cluster.change_auth("aa"),
            "restrict_volume": lambda cluster: cluster.restrict_volume("aa", hosts=[]),
        }
        self.cluster.create_volume("aa", MIB)
        for name, change in changes.items():
            with self.subTest(name):
                self.server.log.write_bytes(b"")
                change(self.cluster)
                before = self.cluster.incomplete_records
                self.server.leave_half()
                with self.assertLogs("farflash", "WARNING"):
                    change(self.cluster)
                self.assertEqual(self.cluster.incomplete_records, before + 1)

    def test_who_uses_functions_or_asyncio_hears_of_it_too(self) -> None:
        with mock.patch.dict(os.environ, FARFLASH_API=self.server.api):
            farflash.create_volume("aa", MIB)
            self.server.leave_half()
            with self.assertLogs("farflash", "WARNING"):
                farflash.create_volume("ab", MIB)
        self.server.log.write_bytes(b"")
        cluster = farflash.AsyncCluster(self.cluster)
        with self.assertRaises(farflash.NotFound):
            asyncio.run(cluster.delete_volume("ac", lose_data=True))
        self.assertEqual(cluster.incomplete_records, 0)
        self.server.leave_half()
        # A refusal is answered and recorded as what was done is.
        with self.assertLogs("farflash", "WARNING"), self.assertRaises(farflash.NotFound):
            asyncio.run(cluster.delete_volume("ad", lose_data=True))
        self.assertEqual(cluster.incomplete_records, 1)


if __name__ == "__main__":
    unittest.main()
