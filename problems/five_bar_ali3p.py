"""The five-bar mechanism by the augmented Lagrangian index-3 formulation with projections (ALI3-P).

`five_bar` in natural coordinates (the global form) and in joint coordinates (semi-recursive, with the centres of mass,
RTdyn0, or the origin, RTdyn1, as reference points): 15 gradients over five seconds by the trapezoidal rule, with steps
of one millisecond, P = M, alpha = 1e9, varsigma = 1 (Lopez Varela, Dopico and Luaces 2023, section 10.1 and table 7).
The exact gradients are those of the continuous equations.

The functionals are vectors; those of Serban and Recuero (2019), eq. 7, are scalar.

References
----------
A. Lopez Varela, D. Dopico, A. Luaces, Augmented Lagrangian index-3 semi-recursive formulations with projections: direct
sensitivity analysis, Multibody System Dynamics, 2023.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import TYPE_CHECKING, Any

import dae_hybrid as dh
from dae_hybrid.interface.api import RunOptions
from dae_hybrid.mechanics import ALI3P, Formulation, Mechanism
from dae_hybrid.problems import five_bar
from dae_hybrid.problems._reference import FOLDER, Exact, read_json

if TYPE_CHECKING:
    from dae_hybrid.problems._five_bar_ali3p_results import Ali3pReproduction

t_span = five_bar.t_span
tolerances: RunOptions = five_bar.tolerances
STEP = 1e-3
#: formulation and coordinates of the columns of table 7
FORMS: dict[str, tuple[Formulation, five_bar.Coordinates]] = {
    "RTdyn0": (ALI3P(), "joint"),
    "RTdyn1": (ALI3P(reference="origin"), "joint"),
    "global": (ALI3P(), "natural"),
}


def mechanism(coordinates: five_bar.Coordinates = "natural") -> Mechanism:
    """The mechanism without impacts."""
    found = five_bar.mechanism("smooth", coordinates=coordinates)
    found.name = "five_bar_ali3p"
    return found


def model() -> dh.HybridModel:
    """The declaration in natural coordinates."""
    return mechanism().model(ALI3P())


@cache
def system(column: str = "global") -> dh.HybridSystem:
    """The built mechanism of a column of table 7, for ``adapter="ali3p"``; cached."""
    formulation, coordinates = FORMS[column]
    return mechanism(coordinates).build(formulation)


@cache
def reference() -> Exact:
    """The values of the continuous equations, to ten digits or more."""
    return five_bar.reference("smooth")


def printed() -> dict[str, list[list[str]]]:
    """Table 7 as printed: rows psi1, psi2, psi3 by column, in the order of the parameters."""
    found: dict[str, list[list[str]]] = read_json(FOLDER / "five_bar" / "table7.json")["table"]
    return found


def reproduce(name: str, title: str, stage: Callable[[str], None]) -> Ali3pReproduction:
    """Recompute table 7; see `dae_hybrid.report.reproduce`."""
    from dae_hybrid.problems import _five_bar_ali3p_results as results

    return results.compute(name, title, stage)


def figures(result: Ali3pReproduction) -> Iterator[tuple[str, str, Any]]:
    """Residuals of the constraints and the energy, with and without projections."""
    from dae_hybrid.problems import _five_bar_ali3p_results as results

    del result
    return results.draw()
