"""Provisioning: servers that belong together, and how volumes are made and opened."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from . import _farflash
from ._errors import InvalidArgument
from ._farflash import Volume

__all__ = [
    "Cluster",
    "CreatedVolume",
    "CutOff",
    "Drive",
    "Tokens",
    "VolumeRecord",
    "change_auth",
    "create_volume",
    "delete_volume",
    "list_volumes",
    "open_volume",
    "resize_volume",
    "restrict_volume",
    "set_slo",
    "show_volume",
]

_T = TypeVar("_T")
_log = logging.getLogger("farflash")

RECOVERY_TIMEOUT = 600.0
_U32 = 2**32 - 1
_U64 = 2**64 - 1


@dataclass(frozen=True)
class Tokens:
    """What opens a volume. Told once: the server does not tell again."""

    #: With this a host proves who it is.
    token: str = field(repr=False)
    #: With this the server does, if the host asks.
    controller_token: str = field(repr=False)


@dataclass(frozen=True)
class Drive:
    """What is known of the device that holds a volume."""

    #: Its id, which it carries.
    id: str
    #: What its maker calls it, and its serial number, if it is a drive that says so.
    model: str | None
    serial: str | None
    #: Whether it works, as of the last ten seconds; None while its host is gone.
    health: Literal["good", "degraded", "failed"] | None


@dataclass(frozen=True)
class CutOff:
    """What was written behind the end that a volume has been given, and is gone."""

    #: How much it was, in bytes.
    bytes: int
    #: Whether it may have been more: not all of a large volume is counted.
    at_least: bool


@dataclass(frozen=True)
class VolumeRecord:
    """What the cluster knows of a volume. What is told of one that is unreachable is what was last known."""

    name: str
    id: str
    nqn: str
    #: Whether its host serves it. Its host is gone, or does not serve its device, if it is "unreachable".
    state: Literal["online", "unreachable"]
    #: What keeps hosts from opening it, in words, if something does.
    trouble: str | None
    size: int
    #: Bytes of metadata that each block has beside its data.
    metadata_size: int
    #: Bytes of a logical block, as hosts address it: 512 or 4096.
    sector_size: int
    #: Bytes of the device that it holds.
    allocated: int
    #: Where it is served, as ip:port.
    address: str
    device: str
    drive: Drive
    #: The host that serves it, what that host shares with others, such as the rack, and its core.
    host: str
    labels: dict[str, str]
    core: int
    #: What it is promised of its device: {"share": 100}, or {"rate": {"reads_per_second": …}}.
    slo: dict[str, Any]
    owner: str | None
    #: Who may open it besides knowing its token: hosts, networks, interfaces.
    restrictions: dict[str, list[str]]
    #: Until when a token that was replaced still opens it, in seconds since 1970 by its host's clock, and for how many
    #: seconds more, whatever that clock says; None if none does.
    grace_until: int | None
    grace_seconds_left: int | None
    #: What a smaller size cut off, in what resize_volume returns, and nowhere else.
    cut_off: CutOff | None

    @classmethod
    def _of(cls, record: dict[str, Any]) -> VolumeRecord:
        return cls(**_fields(record))


@dataclass(frozen=True)
class CreatedVolume(VolumeRecord):
    """A new volume, and what opens it."""

    tokens: Tokens


def _fields(record: dict[str, Any]) -> dict[str, Any]:
    cut_off = record.get("cut_off")
    return {
        "name": record["name"],
        "id": record["id"],
        "nqn": record["nqn"],
        "state": record["state"],
        "trouble": record["trouble"],
        "size": record["size_bytes"],
        "metadata_size": record["metadata_bytes"],
        "sector_size": record["sector_bytes"],
        "allocated": record["allocated_bytes"],
        "address": record["address"],
        "device": record["device"],
        "drive": Drive(**{name: record["drive"][name] for name in ("id", "model", "serial", "health")}),
        "host": record["host"],
        "labels": record["labels"],
        "core": record["portal"]["core"],
        "slo": record["slo"],
        "owner": record.get("owner"),
        "restrictions": record.get("restrictions", {}),
        "grace_until": record.get("grace_until"),
        "grace_seconds_left": record.get("grace_seconds_left"),
        "cut_off": CutOff(cut_off["bytes"], cut_off["at_least"]) if cut_off else None,
    }


def _tokens(record: dict[str, Any]) -> Tokens:
    return Tokens(record["token"], record["controller_token"])


def _secret(text: str | None, file: str | os.PathLike[str] | None, variable: str) -> str | None:
    """A token as it is given, from a file, or from the environment."""
    if text is not None:
        return text
    if file is not None:
        # A secret, and comments about it: which of these it is is found out where it is used.
        with open(file, encoding="utf-8", errors="replace") as lines:
            return lines.read(4096)
    return os.environ.get(variable, "").strip() or None


class Cluster:
    """One or more servers, reached through their API. Usable on any thread.

    api is an address such as "http://192.0.2.1:7420", or several: any of them is asked that answers. By default
    they are those in FARFLASH_API, separated by commas. The token by which the API knows the user is
    api_token, or in the file api_token_file, or in FARFLASH_API_TOKEN. api_ca is a file with the only certificates to
    trust in https:// addresses, in PEM; by default the one in FARFLASH_API_CA, or else what this machine trusts.
    """

    def __init__(
        self,
        api: str | Sequence[str] | None = None,
        *,
        api_token: str | None = None,
        api_token_file: str | os.PathLike[str] | None = None,
        api_ca: str | os.PathLike[str] | None = None,
    ) -> None:
        if api is None:
            api = os.environ.get("FARFLASH_API", "")
        if isinstance(api, str):
            api = [url.strip() for url in api.split(",")] if api.strip() else []
        token = _secret(api_token, api_token_file, "FARFLASH_API_TOKEN")
        self._native = _farflash.Cluster(list(api), token, api_ca)

    @property
    def incomplete_records(self) -> int:
        """How many of the changes that this cluster was asked for, and that were answered, are not wholly in the audit log
        of the server: it has what was asked, and could not take what came of it.

        Such a change is done, or refused, as its call says. The logger "farflash" warns of it, also where the functions of
        the package are used without a Cluster. One that could not be recorded at all is not made, and raises Unreachable.
        """
        return self._native.incomplete_records

    def _change(self, ask: Callable[..., _T], *arguments: Any) -> _T:
        """Asks for a change. That its record is incomplete is logged, never raised: a new token is told once."""
        before = self.incomplete_records
        try:
            return ask(*arguments)
        finally:
            if self.incomplete_records > before:
                _log.warning(
                    "the audit log has what was asked, and not what came of it; see the server's log for why, and give "
                    "the audit log space"
                )

    def create_volume(
        self,
        name: str,
        size: int,
        *,
        metadata: int = 0,
        sector: int = 4096,
        on: str | None = None,
        device: str | None = None,
        core: int | None = None,
        share: int | None = None,
        rates: tuple[int, int] | None = None,
        hosts: Sequence[str] = (),
        networks: Sequence[str] = (),
        interfaces: Sequence[str] = (),
        owner: str | None = None,
    ) -> CreatedVolume:
        """Makes a volume of size bytes, a multiple of 4096. It takes space only as it is written.

        metadata is how many bytes of the program's each block has beside its data, for life: 8, 16 or 64. Such a
        volume is read and written by Volume.read_ex and its like only. sector is the size of a logical block, as
        hosts address it, for life: 4096, or 512 for hosts that take nothing else. With metadata it is 4096.

        on is the host that is to have it, or a label that its host must have, such as "rack=r1": so volumes that
        must not fail together are kept apart (Volume.failure_domain). Else it is the host whose API is asked.
        device is the host's device that is to hold it, else the one with the most free space, and core the CPU
        that is to serve it.

        share is its part of the device in proportion to those of others, or rates the blocks read and
        written a second that it can count on. hosts (NQNs), networks (CIDR) and interfaces restrict who may
        open it, besides knowing its token. owner is the tenant whose it is to be; operators say so.
        """
        _text("name", name, "what the volume is to be called")
        _check("size", size, _U64)
        for what, given in (("metadata", metadata), ("sector", sector), ("core", core)):
            _check(what, given, _U32)
        lists = (list(hosts), list(networks), list(interfaces))
        new = _New(name, size, metadata, sector, on, device, core, *_slo(share, rates), *lists, owner)
        record = json.loads(self._change(self._native.create, new))
        return CreatedVolume(**_fields(record), tokens=_tokens(record))

    def list_volumes(self) -> list[VolumeRecord]:
        """All volumes that this user may see, by name."""
        return [VolumeRecord._of(record) for record in json.loads(self._native.list())]

    def show_volume(self, volume: str) -> VolumeRecord:
        """What is known of a volume, given by name or id."""
        return VolumeRecord._of(json.loads(self._native.show(_volume(volume))))

    def resize_volume(
        self, volume: str, size: int, *, lose_data: bool = False, if_size: int | None = None
    ) -> VolumeRecord:
        """Changes a volume's size. One that holds data, or that a host has open, is made smaller only with lose_data: what
        lies beyond is lost at once, and cut_off of what is returned says how much that was. With if_size it is changed only
        if it has that size now.
        """
        _check("size", size, _U64)
        _check("if_size", if_size, _U64)
        resized = self._change(self._native.resize, _volume(volume), size, lose_data, if_size)
        return VolumeRecord._of(json.loads(resized))

    def set_slo(
        self, volume: str, *, share: int | None = None, rates: tuple[int, int] | None = None
    ) -> VolumeRecord:
        """Changes what a volume is promised of its device: share or rates, as for create_volume."""
        if share is None and rates is None:
            raise ValueError("either share or rates is to be given")
        return VolumeRecord._of(json.loads(self._change(self._native.set_slo, _volume(volume), *_slo(share, rates))))

    def change_auth(
        self, volume: str, *, cut: bool = False, grace_seconds: int | None = None
    ) -> Tokens:
        """Makes new tokens. The old ones open the volume for grace_seconds more; cut ends open connections."""
        _check("grace_seconds", grace_seconds, _U32)
        return _tokens(json.loads(self._change(self._native.change_auth, _volume(volume), cut, grace_seconds)))

    def restrict_volume(
        self,
        volume: str,
        *,
        hosts: Sequence[str] | None = None,
        networks: Sequence[str] | None = None,
        interfaces: Sequence[str] | None = None,
    ) -> VolumeRecord:
        """Changes who may open a volume. A list that is not given stays; an empty one restricts nothing."""
        lists = [None if given is None else list(given) for given in (hosts, networks, interfaces)]
        return VolumeRecord._of(json.loads(self._change(self._native.restrict, _volume(volume), *lists)))

    def delete_volume(self, volume: str, *, lose_data: bool = False) -> None:
        """Deletes a volume; one that holds data, or that a host has open, only with lose_data."""
        self._change(self._native.delete, _volume(volume), lose_data)

    def open_volume(
        self,
        volume: str,
        *,
        token: str | None = None,
        token_file: str | os.PathLike[str] | None = None,
        controller_token: str | None = None,
        host_nqn: str | None = None,
        connections: int = 1,
        depth: int = 128,
        digests: bool = True,
        recovery_timeout: float = RECOVERY_TIMEOUT,
    ) -> Volume:
        """Opens a volume, given by name, id, or place (tcp://IP:PORT/NQN).

        token is the volume's, or in token_file, or in FARFLASH_TOKEN. With controller_token (or
        FARFLASH_CONTROLLER_TOKEN) the server has to prove itself. connections TCP connections carry depth
        requests each at a time; digests are checksums on the way. Requests wait recovery_timeout seconds
        for a server that went away.
        """
        _text("volume", volume, "the volume's name or id, or its place (tcp://IP:PORT/NQN)")
        options = _Options(
            _secret(token, token_file, "FARFLASH_TOKEN"),
            _secret(controller_token, None, "FARFLASH_CONTROLLER_TOKEN"),
            host_nqn,
            connections,
            depth,
            digests,
            recovery_timeout,
        )
        if "://" in volume:
            return _farflash.open_place(volume, options)
        return self._native.open(volume, options)


def _text(what: str, given: str, means: str) -> str:
    """Refuses what names nothing."""
    if not isinstance(given, str):
        raise TypeError(f"{what} is {means}, in a str, not {type(given).__name__}")
    if not given.strip():
        raise InvalidArgument._of(f"{what} is empty: give {means}")
    return given


def _volume(volume: str) -> str:
    return _text("volume", volume, "the volume's name or id")


def _check(what: str, number: int | None, most: int) -> None:
    """Refuses a number that no server could take."""
    if number is not None and not 0 <= number <= most:
        raise ValueError(f"{what} is from 0 to {most}, not {number}")


def _slo(
    share: int | None, rates: tuple[int, int] | None
) -> tuple[int | None, tuple[int, int] | None]:
    """What is promised: one of them."""
    if share is not None and rates is not None:
        raise ValueError("a volume is promised a share or rates, not both")
    _check("share", share, _U32)
    for rate in rates or ():
        _check("a rate", rate, _U64)
    return share, rates


@dataclass(repr=False)
class _New:
    """As the native module takes it."""

    name: str
    size: int
    metadata: int
    sector: int
    on: str | None
    device: str | None
    core: int | None
    share: int | None
    rates: tuple[int, int] | None
    hosts: list[str]
    networks: list[str]
    interfaces: list[str]
    owner: str | None


@dataclass(repr=False)
class _Options:
    """As the native module takes them."""

    token: str | None
    controller_token: str | None
    host_nqn: str | None
    connections: int
    depth: int
    digests: bool
    recovery_timeout: float

    def __post_init__(self) -> None:
        if not 1 <= self.connections <= 256:
            raise ValueError(f"connections is from 1 to 256, not {self.connections}")
        if not 1 <= self.depth <= 1024:
            raise ValueError(f"depth is from 1 to 1024, not {self.depth}")
        if not 0 < self.recovery_timeout <= 1e9:
            raise ValueError(f"recovery_timeout is in seconds above 0, not {self.recovery_timeout}")


def open_volume(volume: str, **options: Any) -> Volume:
    """Cluster.open_volume of the cluster in the environment (FARFLASH_API)."""
    return Cluster().open_volume(volume, **options)


def create_volume(name: str, size: int, **options: Any) -> CreatedVolume:
    """Cluster.create_volume of the cluster in the environment."""
    return Cluster().create_volume(name, size, **options)


def list_volumes() -> list[VolumeRecord]:
    """Cluster.list_volumes of the cluster in the environment."""
    return Cluster().list_volumes()


def show_volume(volume: str) -> VolumeRecord:
    """Cluster.show_volume of the cluster in the environment."""
    return Cluster().show_volume(volume)


def resize_volume(
    volume: str, size: int, *, lose_data: bool = False, if_size: int | None = None
) -> VolumeRecord:
    """Cluster.resize_volume of the cluster in the environment."""
    return Cluster().resize_volume(volume, size, lose_data=lose_data, if_size=if_size)


def set_slo(volume: str, **options: Any) -> VolumeRecord:
    """Cluster.set_slo of the cluster in the environment."""
    return Cluster().set_slo(volume, **options)


def change_auth(volume: str, **options: Any) -> Tokens:
    """Cluster.change_auth of the cluster in the environment."""
    return Cluster().change_auth(volume, **options)


def restrict_volume(volume: str, **options: Any) -> VolumeRecord:
    """Cluster.restrict_volume of the cluster in the environment."""
    return Cluster().restrict_volume(volume, **options)


def delete_volume(volume: str, *, lose_data: bool = False) -> None:
    """Cluster.delete_volume of the cluster in the environment."""
    Cluster().delete_volume(volume, lose_data=lose_data)
