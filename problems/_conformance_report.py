"""Results of the conformance suite, for a terminal and as a Markdown page."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

import numpy as np

from dae_hybrid import __version__
from dae_hybrid.problems.conformance import ANALYSES, CLOSE, MULTIPLE, SLOPE, Conformance, Result
from dae_hybrid.tables import align, markdown

INTRODUCTION = """\
# Conformance of the adapters

Written by `{command}`, which exits with status 1 if an adapter does not conform.

The table compares every worked problem, in every formulation, with every adapter that supports it, against independent
reference values (a closed form, or 20-digit arithmetic by other programs). Errors are relative to the largest
component, in units of rtol = {rtol:g}. They are those of the functional, the event times, the states at output times,
and the gradient by forward and by adjoint analysis. An adapter conforms if no error exceeds {multiple:g} units, after
up to 20 events, and if the errors decrease with the tolerance with a slope of at least {slope} (least-squares fit of
log error against log rtol, from {largest:g} to {smallest:g}), or stay below {close:g} rtol. The slopes are those of
the functional, the forward gradient and the adjoint gradient; *exact* means rounding or zero.

Cost is CPU time relative to `{first}` in the same run. It measures the adapter, not its library: `sundials` runs
compiled code, and the other adapters call back into Python in every step.
"""


def rows(found: Conformance) -> list[list[str]]:
    """One row for every case and adapter, with a heading."""
    heading = ["problem", "adapter", "value", "events", "states", "forward", "adjoint", "slopes"]
    heading += [f"cost: {name}" for name in ANALYSES]
    table, last = [heading], ""
    first = {r.case: r.seconds for r in reversed(found.results) if not (r.refused or r.failed)}
    for result in found.results:
        title = result.case.title if result.case.title != last else ""
        last = result.case.title
        if result.refused or result.failed:
            table.append([title, result.adapter, "refused" if result.refused else "failed", *[""] * (len(heading) - 3)])
            continue
        units = [f"{error / result.rtol:.2g}" for error in result.errors]
        cost = result.seconds / first[result.case]
        table.append(
            [title, result.adapter, *units, _slopes(result), *("" if np.isnan(c) else f"{c:.3g}" for c in cost)]
        )
    return table


def _slopes(result: Result) -> str:
    if np.all(np.isnan(result.slopes)):
        return ""
    return " ".join("exact" if np.isnan(slope) else f"{slope:.1f}" for slope in result.slopes[[0, 3, 4]])


def table(found: Conformance) -> str:
    """The results, for a terminal."""
    lines = align(rows(found), left=(0, 1))
    refused = [f"{r.adapter} refuses {r.case.title}: {r.refused}" for r in found.results if r.refused]
    return "\n".join([*lines, "", *refused, *(found.objections or [_verdict(found)])])


def page(found: Conformance, command: str, rtols: tuple[float, ...]) -> str:
    """The results as a page of Markdown."""
    result = found.results[0]
    introduction = INTRODUCTION.format(
        command=command, rtol=result.rtol, multiple=MULTIPLE, slope=SLOPE, first=result.adapter, largest=max(rtols),
        smallest=min(rtols), close=CLOSE,
    )  # fmt: skip
    refused = {f"- `{r.adapter}`: {r.refused}" for r in found.results if r.refused}
    notes = ["Refusals, which name an adapter that supports the problem:", "", *sorted(refused), ""] if refused else []
    return "\n".join([introduction, _verdict(found), "", markdown(rows(found)), "", *notes, _versions(), ""])


def _verdict(found: Conformance) -> str:
    ran = [r for r in found.results if not r.refused]
    failed = {(r.adapter, r.case.title) for r in ran if r.objections}
    return f"{len(ran) - len(failed)} of {len(ran)} combinations conform."


def _versions() -> str:
    found = [f"dae_hybrid {__version__}"]
    for name in ("sundials4py", "scikits-odes-sundials", "casadi", "scipy", "numpy"):
        try:
            found.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            continue
    return f"Versions: {', '.join(found)}."
