"""What came of a compare-and-swap."""

from __future__ import annotations

from typing import NamedTuple


class Swap(NamedTuple):
    """True if the data was replaced."""

    done: bool
    #: The first byte of the data that is not as expected, from the start of the data.
    miscompare: int | None

    def __bool__(self) -> bool:
        return self.done
