"""Where the arrays of an ensemble are kept: in memory, or in a Zarr group on disk."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol, cast

import numpy as np

from dae_hybrid.ensembles.layout import ResultLayout
from dae_hybrid.errors import OptionError, StoreError
from dae_hybrid.numeric_input import shown
from dae_hybrid.numerics.arrays import Array
from dae_hybrid.trajectory.datasets import optional

#: rows of an array of inputs in one file
ROWS_OF_INPUT = 65_536
REMEDY = "Free space or mend the file system; the same call then continues from the chunks that are done."
REMOVE = "Remove the store and repeat the call, or restore the store from a copy."


def store_path(given: object) -> Path:
    """Check the path of a store; ``~`` is the home directory.

    Raises
    ------
    OptionError
        It is not a path, or is a URL.
    StoreError
        It is relative to a directory that does not exist any more.
    """
    text = os.fspath(given) if isinstance(given, str | os.PathLike) else None
    if not isinstance(text, str) or not text or "://" in text:
        raise OptionError(f"store must be the path of a directory, got {shown(given)}.")
    try:
        return Path(os.path.expanduser(text)).absolute()
    except OSError as reason:
        raise StoreError(f"The store {text!r} is relative to a working directory that was removed.") from reason


class ResultArrays(Protocol):
    """The inputs of all runs and the arrays of a `ResultLayout`, one row per run."""

    @property
    def given(self) -> Array:
        """The inputs, (N, n_given)."""

    def write(self, first: int, rows: Mapping[str, Array]) -> None:
        """Store rows of all arrays, from run `first` on."""

    def read(self, name: str, first: int = 0, last: int | None = None) -> Array:
        """Return rows of an array."""


class MemoryArrays:
    """Arrays in memory, which is allocated with the first chunk."""

    def __init__(self, layout: ResultLayout, given: Array) -> None:
        self.given = given
        self._arrays: dict[str, Array] = {
            name: np.broadcast_to(np.array(spec.fill, spec.dtype), (len(given), *spec.shape))
            for name, spec in layout.arrays.items()
        }

    def write(self, first: int, rows: Mapping[str, Array]) -> None:
        """See `ResultArrays`."""
        for name, values in rows.items():
            if not self._arrays[name].flags.writeable:
                self._arrays[name] = self._arrays[name].copy()
            self._arrays[name][first : first + len(values)] = values

    def read(self, name: str, first: int = 0, last: int | None = None) -> Array:
        """See `ResultArrays`."""
        return self._arrays[name][first:last]


class ZarrArrays:
    """Arrays in a Zarr group, in files of one chunk of runs each, with checksums."""

    def __init__(self, path: Path, *, is_read_only: bool) -> None:
        zarr = optional("zarr", "A store of an ensemble", "ensemble")
        with told(path, "read", REMOVE), zarr.config.set({"array.write_empty_chunks": True}):
            self._group = zarr.open_group(path, mode="r" if is_read_only else "r+")
            self._arrays = {name: self._group[name] for name in self._group.array_keys()}
        self._path = path

    @staticmethod
    def create(path: Path, layout: ResultLayout, given: Array, t: Array | None, chunk: int, facts: Any) -> None:
        """Lay out all arrays."""
        zarr = optional("zarr", "A store of an ensemble", "ensemble")
        checksum = [zarr.codecs.Crc32cCodec()]
        with told(path):
            group = zarr.open_group(path, mode="w-", zarr_format=3, attributes=facts)
            inputs = group.create_array(
                "given", shape=given.shape, chunks=(min(ROWS_OF_INPUT, len(given)), max(1, given.shape[1])), dtype="f8",
                compressors=checksum, dimension_names=("run", "input"),
            )  # fmt: skip
            inputs[:] = given
            if t is not None:
                group.create_array("t", data=t, compressors=checksum, dimension_names=("t",))
            for name, spec in layout.arrays.items():
                group.create_array(
                    name, shape=(len(given), *spec.shape), chunks=(chunk, *spec.shape), dtype=spec.dtype,
                    fill_value=spec.fill, compressors=checksum, dimension_names=("run", *spec.dimensions),
                )  # fmt: skip

    @property
    def facts(self) -> dict[str, Any]:
        """The attributes of the group."""
        return cast(dict[str, Any], self._group.attrs.asdict())

    @property
    def given(self) -> Array:
        """See `ResultArrays`."""
        return self.read("given")

    @property
    def t(self) -> Array | None:
        """Output times."""
        return self.read("t") if "t" in self._arrays else None

    def blocks_missing(self, layout: ResultLayout, blocks: Iterable[int]) -> list[int]:
        """The blocks, chunks of the arrays, that lack a file or have an empty one.

        Raises
        ------
        StoreError
            A file of the inputs or of the output times is missing, or a whole array.
        """
        fixed = ("given", "t") if layout.n_t else ("given",)
        for name in (*fixed, *layout.arrays):
            found = self._arrays.get(name)
            chunks = 0 if found is None or name not in fixed else -(-found.shape[0] // found.chunks[0])
            if found is None or not all(self._has(name, block) for block in range(chunks)):
                raise StoreError(f"The store {str(self._path)!r} lacks files of the array {name!r}.", remedy=REMOVE)
        return [block for block in blocks if not all(self._has(name, block) for name in layout.arrays)]

    def _has(self, name: str, block: int) -> bool:
        file = self._path.joinpath(name, "c", str(block), *["0"] * (self._arrays[name].ndim - 1))
        return file.is_file() and file.stat().st_size > 0

    def write(self, first: int, rows: Mapping[str, Array]) -> None:
        """See `ResultArrays`."""
        with told(self._path):
            for name, values in rows.items():
                self._arrays[name][first : first + len(values)] = values

    def read(self, name: str, first: int = 0, last: int | None = None) -> Array:
        """See `ResultArrays`."""
        with told(self._path, f"read (array {name!r})", REMOVE):
            return np.asarray(self._arrays[name][first:last])


@contextmanager
def told(path: Path, how: str = "written", remedy: str = REMEDY) -> Iterator[None]:
    """Raise a `StoreError` for what the file system or a damaged file raises."""
    try:
        yield
    except (OSError, ValueError, KeyError, RuntimeError) as reason:
        raise StoreError(f"The store {str(path)!r} cannot be {how}: {reason}.", remedy=remedy) from reason
