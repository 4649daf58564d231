"""Entries of a request: their JSON pointers (RFC 6901), and errors that name them."""

from __future__ import annotations

from collections.abc import Iterable

from dae_hybrid.errors import DaeHybridError


def escaped(name: int | str) -> str:
    """A name as part of a JSON pointer."""
    return str(name).replace("~", "~0").replace("/", "~1")


def pointer(place: Iterable[int | str]) -> str:
    """JSON pointer of an entry.

    Examples
    --------
    >>> pointer(("parameters", "a/b", 0))
    '/parameters/a~1b/0'
    """
    return "".join(f"/{escaped(part)}" for part in place)


def at_path(error: DaeHybridError, path: str) -> DaeHybridError:
    """Name the entry of the request at fault."""
    error.path = path  # type: ignore[attr-defined]
    return error
