"""A real server for the tests, and programs that run against it."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

#: The program `farflash`.
PROGRAM = os.environ["FARFLASH_PROGRAM"]
MIB = 1 << 20
_HIGH, _LOW = os.getpid().to_bytes(4)[2:]
#: An address of loopback that no other process uses: their connections and listeners take no port of it, also while no server listens there.
OWN_HOST = f"127.{max(_HIGH, 1)}.{_LOW}.1"

for _variable in ("API", "API_CA", "API_TOKEN", "TOKEN", "CONTROLLER_TOKEN"):
    os.environ.pop(f"FARFLASH_{_variable}", None)


class Server:
    """Killed at the end of a with statement."""

    #: What becomes the program, and its words before those of the program.
    by: tuple[str, ...] = ()

    def __init__(self, device: str = "mem:256MiB", *more: str, auth: bool = False) -> None:
        self.device, self.more = device, more
        self.auth = "on" if auth else "off"
        self.address = f"{OWN_HOST}:0"
        self.start()

    def start(self) -> None:
        arguments = ["serve", "--device", self.device, "--listen", "127.0.0.1:0"]
        arguments += ["--api", self.address, "--auth", self.auth, "--log-json"]
        arguments += self.more
        #: Reads what it logs, so that it never waits for a reader.
        self.drain: threading.Thread | None = None
        command = [*self.by, PROGRAM, *arguments]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        said = []
        for line in self.process.stderr:
            said.append(line)
            try:
                api = json.loads(line)["fields"].get("api")
            except (ValueError, KeyError):
                continue
            if api:
                self.scheme, _, self.address = api.rpartition("://")
                break
        else:
            self.kill()
            raise AssertionError(f"not ready: {said}")
        self.drain = threading.Thread(target=self.process.stderr.read, daemon=True)
        self.drain.start()

    @property
    def api(self) -> str:
        return f"{self.scheme or 'http'}://{self.address}"

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        if self.drain:
            self.drain.join()
        self.process.stderr.close()

    def pause(self) -> None:
        """Stops it as it is: it answers nothing any more."""
        self.process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self.process.pid, os.WSTOPPED)

    def resume(self) -> None:
        """Goes on after a pause."""
        self.process.send_signal(signal.SIGCONT)

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()


class FullLog(Server):
    """A server whose audit log has 64 KiB, of which as much is filled as is wanted."""

    BYTES = 64 << 10
    # In units of 512 bytes. What is beyond is an error, no signal.
    by = ("sh", "-c", 'trap "" XFSZ; ulimit -f 128; exec "$0" "$@"')

    def __init__(self, log: Path) -> None:
        self.log = log
        super().__init__("mem:256MiB", "--audit-log", str(log))

    def leave_half(self) -> None:
        """Leaves room for the first line of a change like the last one, and not for the second."""
        asked, answered = self.log.read_bytes().splitlines(keepends=True)[-2:]
        room = self.BYTES - self.log.stat().st_size - len(asked) - len(answered) // 2
        with self.log.open("ab") as log:
            log.write(b" " * (room - 1) + b"\n")


class Etcd:
    """A directory for servers that are one cluster. Killed at the end of a with statement."""

    def __init__(self) -> None:
        self.files = tempfile.TemporaryDirectory()
        with socket.create_server((OWN_HOST, 0)) as client, socket.create_server((OWN_HOST, 0)) as peer:
            self.address, peers = ("%s:%d" % free.getsockname() for free in (client, peer))
        urls = {"client": f"http://{self.address}", "peer": f"http://{peers}"}
        arguments = [f"--data-dir={self.files.name}", f"--initial-cluster=default={urls['peer']}"]
        arguments += [f"--listen-{kind}-urls={url}" for kind, url in urls.items()]
        arguments += [f"--advertise-client-urls={urls['client']}"]
        arguments += [f"--initial-advertise-peer-urls={urls['peer']}", "--unsafe-no-fsync"]
        silent = subprocess.DEVNULL
        # The Debian package is etcd-server.
        self.process = subprocess.Popen(["etcd", *arguments], stdout=silent, stderr=silent)
        self._wait()

    def _wait(self) -> None:
        host, port = self.address.split(":")
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and self.process.poll() is None:
            try:
                socket.create_connection((host, int(port))).close()
                return
            except OSError:
                time.sleep(0.05)
        self.kill()
        raise AssertionError("etcd is not ready")

    def membership(self, name: str) -> list[str]:
        """What makes a server the host of this name."""
        directory = ["--directory", f"etcd://{self.address}/test"]
        return [*directory, "--host-name", name, "--host-lease", "3"]

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        self.files.cleanup()

    def __enter__(self) -> Etcd:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()


def image(directory: str, name: str = "image") -> str:
    """A formatted device in a file."""
    device = f"file:{Path(directory) / name}"
    subprocess.run(
        [PROGRAM, "format", "--device", f"{device},size=256MiB"], check=True, capture_output=True
    )
    return device


def run(source: str, api: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Runs Python source, or a file of it, in a process of its own."""
    arguments = [source] if source.endswith(".py") else ["-c", source]
    environment = {**os.environ, "FARFLASH_API": api, **variables}
    return subprocess.run(
        [sys.executable, *arguments], env=environment, capture_output=True, text=True, timeout=120
    )


directory = tempfile.TemporaryDirectory
