"""Problem details of the service as typed errors and warnings."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

from dae_hybrid import errors
from dae_hybrid.errors import DaeHybridError, DerivativeWarning, LimitError, OptionError, ServiceError

#: the errors and warnings that a name in a response may stand for
ERRORS: dict[str, type[DaeHybridError]] = {
    name: kind for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, DaeHybridError)
}
WARNINGS: dict[str, type[Warning]] = {
    name: kind for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, Warning)
}
#: of requests that the service refuses before they reach the library, by status
REFUSED: dict[int, type[DaeHybridError]] = {413: LimitError, 422: OptionError}


def error_of(problem: Mapping[str, Any], status: int) -> DaeHybridError:
    """Return the typed error of a problem.

    Parameters
    ----------
    problem : mapping
        Members of the problem, see RFC 9457; none has to exist or to have the right type.
    status : int
        Status of the response.

    Returns
    -------
    DaeHybridError
        Its `errors` are the entries of the request at fault, each a mapping with ``path`` and ``message``.
    """
    kind = ERRORS.get(str(problem.get("kind")), REFUSED.get(status, ServiceError))
    error = kind(
        _text(problem, "detail") or f"The service answered with status {status}.",
        mode=_text(problem, "mode"),
        transition=_text(problem, "transition"),
        time=problem["time"] if isinstance(problem.get("time"), int | float) else None,
        variables=[str(name) for name in _list(problem, "variables")],
        remedy=_text(problem, "remedy"),
    )
    entries = [entry for entry in _list(problem, "errors") if isinstance(entry, Mapping)]
    error.__dict__ |= {"status": status, "errors": entries, "request_id": _text(problem, "request_id")}
    return error


def _text(problem: Mapping[str, Any], name: str) -> str | None:
    found = problem.get(name)
    return found if isinstance(found, str) else None


def _list(problem: Mapping[str, Any], name: str) -> list[Any]:
    found = problem.get(name)
    return found if isinstance(found, list) else []


def warn(answer: Mapping[str, Any], stacklevel: int) -> None:
    """Issue the warnings of a response again."""
    for text, kind in zip(_list(answer, "warnings"), _list(answer, "warning_kinds"), strict=False):
        warnings.warn(str(text), WARNINGS.get(str(kind), DerivativeWarning), stacklevel=stacklevel + 1)
