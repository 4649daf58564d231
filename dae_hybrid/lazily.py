"""Sequences whose members are created on access."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache, partial
from itertools import accumulate
from typing import overload

#: members in the cache, the most recent ones
CACHE_SIZE = 1024


class Lazily[T](Sequence[T]):
    """Concatenation of several sources.

    Parameters
    ----------
    sources : iterable of (int, callable)
        Number of members of a source, and the function that creates the member at an index.

    Examples
    --------
    >>> from dae_hybrid.lazily import Lazily
    >>> found = Lazily([(2, str), (1, hex)])
    >>> len(found), found[1], found[-1], found[1:]
    (3, '1', '0x0', ('1', '0x0'))
    """

    def __init__(self, sources: Iterable[tuple[int, Callable[[int], T]]]) -> None:
        given = [source for source in sources if source[0]]
        ends = list(accumulate(count for count, _ in given))
        self._size = ends[-1] if ends else 0
        self._member = lru_cache(CACHE_SIZE)(partial(_member, ends, [make for _, make in given]))

    def __len__(self) -> int:
        return self._size

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[T, ...]: ...
    def __getitem__(self, index: int | slice) -> T | tuple[T, ...]:
        places = range(self._size)[index]
        return tuple(map(self._member, places)) if isinstance(places, range) else self._member(places)

    def __iter__(self) -> Iterator[T]:
        return map(self._member, range(self._size))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence):
            return NotImplemented
        return len(self) == len(other) and all(a == b for a, b in zip(self, other, strict=True))

    __hash__ = object.__hash__

    def __reduce__(self) -> tuple[type[tuple[T, ...]], tuple[list[T]]]:
        return tuple, (list(self),)

    def __repr__(self) -> str:
        shown = [*map(repr, self[:3]), *(["..."] if len(self) > 3 else [])]
        return f"<{len(self)} members: {', '.join(shown)}>" if shown else "<no members>"


def _member[T](ends: list[int], sources: list[Callable[[int], T]], index: int) -> T:
    source = bisect_right(ends, index)
    return sources[source](index - (ends[source - 1] if source else 0))
