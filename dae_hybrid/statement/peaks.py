"""Parts of functionals that the whole run decides: extrema, their times, and the times of crossings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypedDict

import casadi as ca

from dae_hybrid.errors import ModelError
from dae_hybrid.statement.declarations import Peak
from dae_hybrid.statement.expressions import expression

#: keywords of extrema and of their times
EXTREMA = ("maximum", "minimum", "maximum_abs")
TIMES = tuple(f"time_of_{name}" for name in EXTREMA)
#: names of the expressions of the other keywords, in order
CROSSINGS = {"rise_time": ("signal", "low", "high"), "settling_time": ("signal", "target", "band")}
RELATIVE = {"overshoot": ("signal", "start", "target")}
ABOVE = {"time_above": ("signal", "bound"), "exceedance": ("signal", "bound")}
#: keywords that become a part of another kind
SHORTHANDS = RELATIVE | ABOVE
#: keywords whose parts are stored
KINDS = (*EXTREMA, *TIMES, *CROSSINGS)


class PeakParts(TypedDict, total=False):
    """Keywords of `HybridModel.functional` for what the whole run decides."""

    maximum: Any
    minimum: Any
    maximum_abs: Any
    time_of_maximum: Any
    time_of_minimum: Any
    time_of_maximum_abs: Any
    rise_time: tuple[Any, Any, Any]
    settling_time: tuple[Any, Any, Any]
    overshoot: tuple[Any, Any, Any]
    time_above: tuple[Any, Any]
    exceedance: tuple[Any, Any]


def peaks_of(functional: str, given: Mapping[str, Any]) -> tuple[list[Peak], list[ca.MX]]:
    """Return the stated peaks of a functional, and the integrands of those that are integrals.

    Raises
    ------
    ModelError
        A keyword is unknown, or does not have its number of expressions.
    """
    peaks, integrands = list[Peak](), list[ca.MX]()
    for kind, value in given.items():
        if value is None:
            continue
        what = f"{kind} of functional '{functional}'"
        if kind in EXTREMA or kind in TIMES:
            parts: tuple[ca.MX, ...] = (expression(what, value, None),)
        elif kind in CROSSINGS or kind in SHORTHANDS:
            parts = _several(what, (CROSSINGS | SHORTHANDS)[kind], value)
        else:
            legal = ("integrand", "terminal", "at_times", "at_events", *KINDS, *SHORTHANDS)
            raise ModelError(
                f"Functional '{functional}' has no part {kind!r}.", remedy=f"Its parts are {', '.join(legal)}."
            )
        if kind in ABOVE:
            signal, bound = parts
            integrands.append(signal > bound if kind == "time_above" else ca.fmax(signal - bound, 0))
        elif kind in RELATIVE:
            signal, start, target = parts
            peaks.append(peak("maximum", ((signal - target) / (target - start),)))
        else:
            peaks.append(peak(kind, parts))
    if len({own.kind for own in peaks}) < len(peaks):
        raise ModelError(
            f"Functional '{functional}' has an overshoot and another maximum.", remedy="Declare two functionals."
        )
    return peaks, integrands


def peak(kind: str, parts: tuple[ca.MX, ...]) -> Peak:
    """Return the peak of a keyword with its expressions."""
    if kind == "rise_time":
        signal, low, high = parts
        watched = ca.vertcat(signal - low, signal - high)
    elif kind == "settling_time":
        signal, target, band = parts
        watched = ca.vertcat(signal - target - band, target - signal - band)
    else:
        (watched,) = parts
    return Peak(kind, parts, watched)


def _several(what: str, names: tuple[str, ...], given: Any) -> tuple[ca.MX, ...]:
    """The expressions of a keyword that takes several; all but the first may be scalar."""
    if not isinstance(given, tuple | list) or len(given) != len(names):
        raise ModelError(f"{what} takes ({', '.join(names)}), got {given!r}.")
    parts = [expression(f"{name} in {what}", part, None) for name, part in zip(names, given, strict=True)]
    size = parts[0].numel()
    if any(part.numel() not in (1, size) for part in parts):
        sizes = ", ".join(f"{name} {part.numel()}" for name, part in zip(names, parts, strict=True))
        raise ModelError(f"{what}: sizes must be 1 or that of the signal, got {sizes}.")
    return tuple(parts)


def size_of(part: Peak) -> int:
    """Return the number of components of a peak."""
    return int(part.parts[0].numel())
