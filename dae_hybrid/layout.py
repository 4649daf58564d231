"""Named blocks of a flat vector."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property

#: the state of modes without differential variables, which is in no result
IDLE = "(idle)"


@dataclass(frozen=True)
class Layout:
    """Names, sizes and offsets of the variables that share one flat vector.

    Examples
    --------
    >>> layout = Layout((("u", 1), ("force", 3)))
    >>> layout.size, layout["force"], layout.labels()
    (4, slice(1, 4, None), ('u', 'force[0]', 'force[1]', 'force[2]'))
    """

    blocks: tuple[tuple[str, int], ...]
    #: rows and columns of the blocks that are matrices; their entries follow each other by rows
    shapes: tuple[tuple[str, tuple[int, int]], ...] = ()
    size: int = field(init=False)
    _slices: dict[str, slice] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        slices, start = {}, 0
        for name, length in self.blocks:
            slices[name] = slice(start, start + length)
            start += length
        object.__setattr__(self, "size", start)
        object.__setattr__(self, "_slices", slices)

    @classmethod
    def of(cls, blocks: Iterable[tuple[str, int]]) -> Layout:
        """Layout from any iterable of (name, size)."""
        return cls(tuple(blocks))

    @property
    def names(self) -> tuple[str, ...]:
        """Names in order."""
        return tuple(name for name, _ in self.blocks)

    def __getitem__(self, name: str) -> slice:
        return self._slices[name]

    def __contains__(self, name: object) -> bool:
        return name in self._slices

    def find(self, name: object) -> slice | None:
        """Slice of a name, or of the entry with that label; None if there is none."""
        if name in self._slices:
            return self._slices[str(name)]
        place = self._places.get(name)
        return None if place is None else slice(place, place + 1)

    def shape(self, name: str) -> tuple[int, int] | None:
        """Rows and columns of a matrix, None for a number or a vector."""
        return dict(self.shapes).get(name)

    def labels(self) -> tuple[str, ...]:
        """One label per entry: ``x`` for scalars, ``x[0]``, ``x[1]``, ... for vectors, ``x[0,1]`` for matrices."""
        return self._labels

    @cached_property
    def _places(self) -> dict[object, int]:
        return {label: place for place, label in enumerate(self._labels)}

    @cached_property
    def _labels(self) -> tuple[str, ...]:
        shapes, found = dict(self.shapes), list[str]()
        for name, length in self.blocks:
            if name in shapes:
                rows, columns = shapes[name]
                found += [f"{name}[{i},{j}]" for i in range(rows) for j in range(columns)]
            else:
                found += [name] if length == 1 else [f"{name}[{i}]" for i in range(length)]
        return tuple(found)
