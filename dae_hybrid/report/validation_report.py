"""Results of `dae_hybrid.report.validate` as text for a terminal, as a Markdown page and as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from math import isfinite
from typing import Any

import numpy as np

from dae_hybrid import __version__
from dae_hybrid.report.validate import Comparison, Largest, Validation
from dae_hybrid.tables import align, markdown

INTRODUCTION = """\
# Validation against ode15s

Written by `{command}`, which exits with status 1 if a difference is not explained.

Sections 5.1 and 5.2 of Serban and Recuero (2019) are solved twice: by this library, and by `ode15s`, the integrator of
the paper. The comparison covers the trajectories at every output time of the `ode15s` run and on both sides of every
event, the event tables, the sensitivities, and the functional with its gradient by forward and by adjoint analysis.
Both solutions are also compared with the truth: a closed form in 5.1, 20-digit arithmetic by two other programs in 5.2.

The `ode15s` values were computed for this comparison, because the paper prints few. They are stored in
`problems/reference/serban_recuero`, with the scripts that computed them, the truth, and a README on their accuracy.
Octave's `ode15s` also integrates with SUNDIALS (IDA), but its modes, events, transitions and sensitivities are written
by hand; the truth shares no code with either.
"""

READING = """\
How to read the tables: *difference* is the largest |ours - ode15s|, and *at* is its place. *ode15s* and *ours* are the
largest errors at the places where the truth is known; *truth at* counts these places. *on record* is the error that the
README of the data states for all places, *allowed* the error that these tolerances permit the library. A difference is
explained if it does not exceed *on record* + *allowed*, and if neither error exceeds its own bound. All errors are
absolute; *size* is the largest value of the quantity. States at events are those just before the event. If the truth is
known at some places only, the largest difference may occur elsewhere; the recorded error then explains it.

The figures show the output times. For sensitivities they show the maximum over the parameters, each relative to its
largest value; thin vertical lines are events.
"""

HEADING = ["", "quantity", "size", "difference", "at", "ode15s", "on record", "ours", "allowed", "truth at"]
BARE_HEADING = ["", "quantity", "size", "difference", "at", "ode15s", "of its size"]


def table(found: Validation) -> str:
    """The results of one problem, for a terminal."""
    lines = [f"{found.name}: {found.title}", f"{_conditions(found)}.", f"ode15s: {found.witness.source}."]
    lines += [f"truth: {found.witness.truth}.", "", *align(_rows(found.comparisons), left=(0, 1, 4))]
    lines += [_equal(found.comparisons), "", "ode15s with interpolated event times:", ""]
    lines += [*align(_bare_rows(found.bare), left=(0, 1, 4)), "", *(found.objections or [_verdict([found])])]
    return "\n".join(lines)


def page(results: Sequence[Validation], command: str, pictures: Mapping[str, str]) -> str:
    """The results as a Markdown page: introduction, result, then tables and figure of each problem.

    Parameters
    ----------
    command : str
        Command line that writes the page.
    pictures : dict of str
        Path of the figure, relative to the page, by problem.
    """
    objections = [f"- {text}" for found in results for text in found.objections]
    verdict = (
        [_verdict(results), "", *objections] if objections else [f"{_verdict(results)} {_closer(results)}".rstrip()]
    )
    parts = [INTRODUCTION.format(command=command), "**Result.** " + "\n".join([*verdict, ""]), READING]
    for found in results:
        bare = _rows_of_markdown(_bare_rows(found.bare))
        parts.append(
            f"## {found.name}: {found.title}\n\n"
            f"Ours: {_conditions(found)}.\n\nTheirs: {found.witness.source}.\n\nTruth: {found.witness.truth}.\n\n"
            f"{_rows_of_markdown(_rows(found.comparisons))}\n\n{_equal(found.comparisons)}\n\n"
            f"![Differences and errors of {found.name} over time]({pictures[found.name]})\n\n"
            f"### {found.name}: ode15s with interpolated event times\n\n{_cost(found)}\n\n{bare}\n"
        )
    parts.append(f"## Versions\n\n{', '.join(f'{name} {number}' for name, number in versions().items())}.\n")
    return "\n".join(parts)


def as_json(results: Sequence[Validation]) -> dict[str, Any]:
    """Plain numbers; None where no number exists."""
    return {
        "versions": versions(),
        "explained": not any(found.objections for found in results),
        "problems": {
            found.name: {
                "adapter": found.adapter,
                "tolerances": dict(found.tolerances),
                "source": found.witness.source,
                "truth": found.witness.truth,
                "comparisons": [_entry(comparison) for comparison in found.comparisons],
                "bare": [_entry(comparison) for comparison in found.bare],
                "objections": found.objections,
            }
            for found in results
        },
    }


def versions() -> dict[str, str]:
    """Versions of this library and of the packages on which its numbers depend."""
    names = {"SUNDIALS (sundials4py)": "sundials4py", "CasADi": "casadi", "NumPy": "numpy"}
    numbers = {"dae_hybrid": __version__}
    for name, package in names.items():
        try:
            numbers[name] = version(package)
        except PackageNotFoundError:
            numbers[name] = "not installed"
    return numbers


# -- rows -------------------------------------------------------------------------------------------


def _rows(comparisons: Sequence[Comparison]) -> list[list[str]]:
    """The heading, and a row for every quantity that differs from ode15s."""
    rows, last = [[*HEADING, "explained"]], ""
    for one in comparisons:
        if _equals(one):
            continue
        rows.append([
            "" if one.block == last else one.block, one.quantity, _number(one.size), _number(one.difference.size),
            one.difference.place, _size(one.theirs), _number(one.recorded), _size(one.ours), _number(one.allowed),
            f"{one.known} of {one.points}", "yes" if one.explained else "NO",
        ])  # fmt: skip
        last = one.block
    return rows


def _bare_rows(comparisons: Sequence[Comparison]) -> list[list[str]]:
    rows, last = [BARE_HEADING], ""
    for one in comparisons:
        if _equals(one):
            continue
        rows.append([
            "" if one.block == last else one.block, one.quantity, _number(one.size), _number(one.difference.size),
            one.difference.place, _size(one.theirs), _number(_relative(one)),
        ])  # fmt: skip
        last = one.block
    return rows


def _rows_of_markdown(rows: list[list[str]]) -> str:
    return markdown([[cell.replace("|", r"\|") for cell in row] for row in rows])


def _equals(one: Comparison) -> bool:
    return one.difference.size == 0.0 and one.explained is not False


def _equal(comparisons: Sequence[Comparison]) -> str:
    names = ", ".join(f"{one.quantity} ({one.block})" for one in comparisons if _equals(one))
    return f"Equal at every place: {names}." if names else "Nothing is equal at every place."


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.2g}" if value == 0 else f"{value:.1e}"


def _size(found: Largest | None) -> str:
    return "unknown" if found is None else _number(found.size)


def _relative(one: Comparison) -> float | None:
    """Error of ode15s relative to the largest value of the quantity."""
    return one.theirs.size / one.size if one.theirs is not None and one.size else None


def _entry(one: Comparison) -> dict[str, Any]:
    return {
        "block": one.block,
        "quantity": one.quantity,
        "size": one.size,
        "places": one.points,
        "places_with_truth": one.known,
        "difference": _place(one.difference),
        "error_of_ode15s": _place(one.theirs),
        "error_on_record": one.recorded,
        "our_error": _place(one.ours),
        "our_error_allowed": one.allowed,
        "explained": one.explained,
    }


def _place(found: Largest | None) -> dict[str, Any] | None:
    if found is None:
        return None
    size, time = (value if isfinite(value) else None for value in (found.size, found.time))
    return {"largest": size, "place": found.place, "time": time}


# -- sentences --------------------------------------------------------------------------------------


def _conditions(found: Validation) -> str:
    return f"adapter {found.adapter}, rtol {found.tolerances['rtol']:g}, atol {found.tolerances['atol']:g}"


def _verdict(results: Sequence[Validation]) -> str:
    every = [one for found in results for one in found.comparisons]
    unexplained = sum(not one.explained for one in every)
    if unexplained:
        return f"{unexplained} of {len(every)} differences are not explained by the errors of the two programs:"
    return f"All {len(every)} differences are explained by the errors of the two programs."


def _closer(results: Sequence[Validation]) -> str:
    """Comparison of the two errors, over the quantities where both are positive."""
    pairs = [(one.theirs, one.ours) for found in results for one in found.comparisons]
    ratios = [a.size / b.size for a, b in pairs if a is not None and b is not None and a.size > 0 and b.size > 0]
    closer = sum(ratio > 1 for ratio in ratios)
    return (
        f"Where the truth is known, this library is closer to it than `ode15s` in {closer} of {len(ratios)} "
        f"quantities, by a median factor of {np.median(ratios):.0f}: the differences in the tables "
        "are the errors of `ode15s`."
        if ratios and np.median(ratios) > 2
        else ""
    )


def _cost(found: Validation) -> str:
    """The effect of interpolated event times."""
    (polished,) = (one for one in found.comparisons if (one.block, one.quantity) == ("events", "t"))
    (times,) = (one for one in found.bare if (one.block, one.quantity) == ("events", "t"))
    text = (
        f"`ode15s` interpolates event times linearly between steps. Its event times differ from ours by up to "
        f"{times.difference.size:.1e} ({times.difference.place}), polished ones by {polished.difference.size:.1e}."
    )
    off = [(ratio, one) for one in found.bare if one.block == "functional" and (ratio := _relative(one))]
    if off:
        ratio, worst = max(off, key=lambda pair: pair[0])
        text += f" This alone causes an error of {100 * ratio:.2g} % in {worst.quantity}."
    return text
