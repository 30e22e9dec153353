"""Exceptions. All are farflash.Error, and OSError, so that code for files can handle them."""

from __future__ import annotations

import errno


class Error(OSError):
    """Something was not done. The subclasses say what can be done about it."""

    #: The errno of those that are made here.
    _errno = errno.EIO

    @classmethod
    def _of(cls, says: str) -> Error:
        return cls(cls._errno, says)


class InvalidArgument(Error, ValueError):
    """The call makes no sense."""

    _errno = errno.EINVAL


class Misaligned(InvalidArgument):
    """Offset or length is no multiple of the block size."""


class OutOfRange(InvalidArgument):
    """The request reaches beyond the end of the volume."""


class TooLarge(InvalidArgument):
    """What is to be all or nothing is longer than the volume's atomic_write_size. Nothing of it was done."""


class NotFound(Error, FileNotFoundError):
    """There is no such volume, or not for this user."""

    _errno = errno.ENOENT


class AlreadyExists(Error, FileExistsError):
    """The name is taken."""

    _errno = errno.EEXIST


class PermissionDenied(Error, PermissionError):
    """The token or the user is not the right one."""

    _errno = errno.EACCES


class Unreachable(Error, ConnectionError):
    """A server cannot be reached; later it may be."""

    _errno = errno.EHOSTUNREACH


class Untrusted(Error, ConnectionError):
    """Who answers cannot show by its certificate that it is the server. See api_ca of Cluster."""

    _errno = errno.EPROTO


class Unproven(Error, ConnectionError):
    """A volume's server does not know the controller token, or does without authentication: it may be another server than meant."""

    _errno = errno.EPROTO


class NoSpace(Error):
    """The device, or the user's quota, is full."""

    _errno = errno.ENOSPC


class Damaged(Error):
    """Data is damaged, on the server or on the way."""


class Unsupported(Error):
    """The server cannot do that."""

    _errno = errno.EOPNOTSUPP


class OutcomeUnknown(Error):
    """The answer to a swap or to a change by the API is lost: it may or may not have been carried out. Look."""


class Closed(Error, ValueError):
    """The volume is closed, or was opened before this process was forked."""

    _errno = errno.EBADF


class Busy(Error):
    """Too much is under way. Wait for some of it."""

    _errno = errno.EBUSY


class InUse(Error):
    """The volume holds data, or hosts have it open. Say that it may be lost (lose_data)."""

    _errno = errno.EBUSY


class Changed(Error):
    """The volume has not the size that the change was made for (if_size). Look at it, and decide again."""

    _errno = errno.ESTALE


class Failed(Error):
    """The server failed the request for another reason."""
