"""Gradients of models of the SBML semantic test suite: forward, adjoint, and finite differences in one direction.

python benchmarks/sbml_gradients.py PATH_TO_CHECKOUT [--every 30] [--write]

Every so many time courses: of the sum of all states and memory, with weights, at the end and integrated, the gradient
with respect to all numbers of the document. They agree if forward and adjoint analysis differ by less than 1e-5 of the
largest component, and finite differences in a random direction by less than 1e-3. --write writes the table to
docs/sbml_suite.md.
"""

from __future__ import annotations

import argparse
import warnings
from collections import Counter
from pathlib import Path

import numpy as np
from sbml_suite import SECTION, VERSIONS, folders_in, header_of, settings_of

import dae_hybrid as dh

#: share of the duration of a case at which its run ends, away from its output times
END = 0.9317
STEP = 1e-4
OUTCOMES = ("agree", "refused", "no states", "events differ", "disagree")


def checked(folder: Path) -> str:
    """The outcome of a case."""
    settings = settings_of(folder)
    paths = (folder / f"{folder.name}-sbml-{version}.xml" for version in VERSIONS)
    model = dh.importers.sbml(next(path for path in paths if path.exists()), units="ignore")
    stored = [d.symbol for d in model.declarations.values() if d.kind in ("differential", "memory")]
    total = sum((1 + 0.1 * i) * x for i, x in enumerate(stored))
    parameters = model.of_kind("parameter")
    if not stored or not parameters:
        return "no states"
    model.functional("G", terminal=total, integrand=total)
    system = model.build(native=False)
    span = (0.0, END * (float(settings["start"]) + float(settings["duration"])))
    forward = np.ravel(dh.forward_sensitivity(system, span, rtol=1e-9, adapter="scipy").gradient["G"])
    adjoint = np.ravel(dh.adjoint_gradient(system, span, "G", rtol=1e-9, adapter="scipy").gradient)
    nominal = np.concatenate([np.ravel(d.start) for d in parameters])
    direction = np.random.default_rng(1).uniform(-1, 1, nominal.size) * np.abs(nominal)
    below, above = (
        dh.simulate(system, span, parameters=nominal + sign * STEP * direction, rtol=1e-9, adapter="scipy")
        for sign in (-1, 1)
    )
    difference = float(above.functionals["G"] - below.functionals["G"]) / (2 * STEP)
    largest = np.abs(forward).max(initial=1e-300)
    if np.abs(forward - adjoint).max(initial=0.0) > 1e-5 * largest:
        return "disagree"
    if len(above.events) != len(below.events):
        return "events differ"
    along = float(forward @ direction)
    return "agree" if abs(difference - along) <= 1e-3 * max(abs(difference), abs(along), 1e-8) else "disagree"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkout", type=Path)
    parser.add_argument("--every", type=int, default=30)
    parser.add_argument("--write", action="store_true")
    given = parser.parse_args()
    count: dict[str, Counter[str]] = {"all": Counter(), "with events": Counter()}
    for folder in folders_in(given.checkout)[:: given.every]:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                outcome = checked(folder)
        except dh.DaeHybridError:
            outcome = "refused"
        if outcome == "disagree":
            print(folder.name, outcome)
        has_events = any(tag.startswith("Event") for tag in header_of(folder)[1])
        for key in ("all", "with events") if has_events else ("all",):
            count[key][outcome] += 1
    lines = ["| gradients | " + " | ".join(OUTCOMES) + " |", "|---" + "|---:" * len(OUTCOMES) + "|"]
    for key, own in count.items():
        lines.append(f"| {key} {own.total()} | " + " | ".join(str(own[outcome]) for outcome in OUTCOMES) + " |")
    table = "\n".join(lines)
    print(table)
    if given.write:
        page = Path(__file__).parents[1] / "docs" / "sbml_suite.md"
        text = page.read_text(encoding="utf-8").partition(SECTION)[0].rstrip()
        about = (
            f"`python benchmarks/sbml_gradients.py CHECKOUT --every {given.every} --write`: the gradient of the sum of "
            "all states and memory with respect to all numbers of the document, by forward analysis, adjoint analysis "
            "and finite differences."
        )
        page.write_text(f"{text}\n\n{SECTION}\n\n{about}\n\n{table}\n", encoding="utf-8")
    return int(count["all"]["disagree"] > 0)


if __name__ == "__main__":
    raise SystemExit(main())
