"""The key-value server under redis-py, the client library for Python: FARFLASH_DATASTORE names the program."""

import os
import re
import subprocess
import tempfile
import threading
import unittest

import redis

PROGRAM = os.environ["FARFLASH_DATASTORE"]


class Server:
    """A server in a process and a directory of its own."""

    def __init__(self, *arguments: str) -> None:
        self.directory = tempfile.TemporaryDirectory()
        command = [PROGRAM, "serve", "--data", os.path.join(self.directory.name, "data")]
        command += ["--listen", "127.0.0.1:0", "--memory", "16MiB", *arguments]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        for line in self.process.stderr:
            if found := re.search(r"serving .* on 127\.0\.0\.1:(\d+):", line):
                self.port = int(found[1])
                return
        raise AssertionError("the server ended")

    def stop(self) -> None:
        self.process.terminate()
        assert self.process.wait(60) == 0
        self.process.stderr.close()
        self.directory.cleanup()


class Redis(unittest.TestCase):
    server: Server

    @classmethod
    def setUpClass(cls) -> None:
        cls.server = Server()

    @classmethod
    def tearDownClass(cls) -> None:
        cls.server.stop()

    def clients(self) -> list[redis.Redis]:
        return [redis.Redis(port=self.server.port, protocol=protocol) for protocol in (2, 3)]

    def test_values_in_both_versions_of_the_protocol(self) -> None:
        for client in self.clients():
            self.assertTrue(client.ping())
            self.assertTrue(client.set("a", b"\x00\r\n\xff"))
            self.assertEqual(client.get("a"), b"\x00\r\n\xff")
            self.assertIsNone(client.get("none"))
            self.assertTrue(client.mset({"b": 1, "c": 2}))
            self.assertEqual(client.mget("b", "none", "c"), [b"1", None, b"2"])
            self.assertEqual(client.append("b", "23"), 3)
            self.assertEqual(client.strlen("b"), 3)
            self.assertEqual(client.exists("a", "b", "none"), 2)
            self.assertIsNone(client.set("a", 1, nx=True))
            self.assertEqual(client.set("a", 1, get=True), b"\x00\r\n\xff")
            self.assertEqual(sorted(client.scan_iter(count=1)), [b"a", b"b", b"c"])
            self.assertEqual(list(client.scan_iter(match="[bc]*")), [b"b", b"c"])
            self.assertEqual(client.dbsize(), 3)
            self.assertEqual(client.type("a"), b"string")
            self.assertEqual(client.delete("a", "b", "c", "none"), 3)
            self.assertEqual(client.config_get("maxclients"), {"maxclients": "1024"})
            self.assertEqual(client.info("server")["rocksdb_version"].split(".")[:2], ["7", "8"])
            self.assertIsInstance(client.client_id(), int)

    def test_errors_are_exceptions_and_the_connection_goes_on(self) -> None:
        for client in self.clients():
            with self.assertRaisesRegex(redis.ResponseError, "keys do not expire"):
                client.set("a", 1, ex=10)
            with self.assertRaisesRegex(redis.ResponseError, "unknown command"):
                client.lpush("a", 1)
            self.assertTrue(client.ping())

    def test_pipelines_keep_their_order(self) -> None:
        for client in self.clients():
            pipeline = client.pipeline(transaction=False)
            for number in range(500):
                pipeline.set("p", number).get("p").append("p", "!").strlen("p")
            replies = pipeline.execute()
            for number in range(500):
                text = str(number).encode()
                self.assertEqual(replies[4 * number : 4 * number + 4], [True, text, len(text) + 1, len(text) + 1])
            client.delete("p")

    def test_many_threads_share_a_pool(self) -> None:
        client, failures = self.clients()[1], []

        def work(thread: int) -> None:
            for number in range(200):
                client.set(f"t-{thread}", number)
                if client.get(f"t-{thread}") != str(number).encode():
                    failures.append((thread, number))
            client.delete(f"t-{thread}")

        threads = [threading.Thread(target=work, args=(thread,)) for thread in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(failures, [])


class Tls(unittest.TestCase):
    def test_values_over_tls(self) -> None:
        with tempfile.TemporaryDirectory() as directory:
            server = Server("--tls", directory)
            trusted = os.path.join(directory, "certificate.pem")
            try:
                for protocol in (2, 3):
                    client = redis.Redis(
                        port=server.port, protocol=protocol, ssl=True, ssl_ca_certs=trusted, ssl_check_hostname=True
                    )
                    value = os.urandom(200_000)
                    self.assertTrue(client.set("a", value))
                    self.assertEqual(client.get("a"), value)
                    with self.assertRaises(redis.ConnectionError):
                        redis.Redis(port=server.port, protocol=protocol, ssl=True).ping()
            finally:
                server.stop()


class Password(unittest.TestCase):
    def test_a_password_is_asked_for(self) -> None:
        with tempfile.NamedTemporaryFile("w") as file:
            file.write("secret\n")
            file.flush()
            server = Server("--password-file", file.name)
            try:
                for protocol in (2, 3):
                    client = redis.Redis(port=server.port, protocol=protocol, password="secret")
                    self.assertTrue(client.set("a", 1))
                    with self.assertRaises(redis.AuthenticationError):
                        redis.Redis(port=server.port, protocol=protocol).get("a")
            finally:
                server.stop()


if __name__ == "__main__":
    unittest.main()
