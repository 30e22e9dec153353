"""Exceptions. All are farflash.Error, and OSError, so that code for files can handle them."""

from __future__ import annotations


class Error(OSError):
    """Something was not done. The subclasses say what can be done about it."""


class InvalidArgument(Error, ValueError):
    """The call makes no sense."""


class Misaligned(InvalidArgument):
    """Offset or length is no multiple of the block size."""


class OutOfRange(InvalidArgument):
    """The request reaches beyond the end of the volume."""


class NotFound(Error, FileNotFoundError):
    """There is no such volume, or not for this user."""


class AlreadyExists(Error, FileExistsError):
    """The name is taken."""


class PermissionDenied(Error, PermissionError):
    """The token or the user is not the right one."""


class Unreachable(Error, ConnectionError):
    """A server cannot be reached; later it may be."""


class NoSpace(Error):
    """The device, or the user's quota, is full."""


class Damaged(Error):
    """Data is damaged, on the server or on the way."""


class Unsupported(Error):
    """The server cannot do that."""


class OutcomeUnknown(Error):
    """The connection was lost; whether a swap was carried out is not known. Read what is there."""


class Closed(Error, ValueError):
    """The volume is closed, or was opened before this process was forked."""


class Busy(Error):
    """Too much is under way. Wait for some of it."""


class Failed(Error):
    """The server failed the request for another reason."""
