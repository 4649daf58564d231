"""One-sided derivatives of a call, told to the search that made the call instead of its user."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_listening: ContextVar[list[str] | None] = ContextVar("one_sided", default=None)


@contextmanager
def listening() -> Iterator[list[str]]:
    """Collect what would be warnings of one-sided derivatives, on this thread and on those that carry its context.

    Examples
    --------
    >>> from dae_hybrid.conditions.one_sided import listening, untold
    >>> with listening() as heard:
    ...     left = untold(["The order matters."])
    >>> heard, left
    (['The order matters.'], ())
    """
    heard: list[str] = []
    token = _listening.set(heard)
    try:
        yield heard
    finally:
        _listening.reset(token)


def untold(sentences: Iterable[str]) -> tuple[str, ...]:
    """Tell these sentences to who listens; return those to be issued as warnings, if nobody does."""
    heard = _listening.get()
    if heard is None:
        return tuple(sentences)
    heard.extend(sentences)
    return ()
