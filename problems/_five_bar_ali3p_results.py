"""Table 7 of Lopez Varela, Dopico and Luaces (2023), recomputed, and figures of residuals and energy."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from time import process_time
from typing import Any

import casadi as ca
import numpy as np
from numpy.typing import NDArray

import dae_hybrid as dh
from dae_hybrid.mechanics import ALI3P, Index2, Mechanism
from dae_hybrid.mechanics.equations import EquationsOfMotion
from dae_hybrid.problems import five_bar, five_bar_ali3p
from dae_hybrid.report import plotting
from dae_hybrid.report.reproduce import ReportedEntry
from dae_hybrid.tables import align

Array = NDArray[np.float64]
ROWS = ("psi1", "psi2", "psi3")
#: step of the figures, in which the effect of the projections shows, and the smallest residual on their axis
FIGURE_STEP, FLOOR = 5e-3, 1e-17
#: calls of which the fastest is reported
REPEATS = 3


@dataclass(frozen=True, eq=False)
class Ali3pReproduction:
    """The columns of table 7, (3, 5) each, with the processor times of the direct sensitivities in seconds.

    The times include the check of the gradient at twice the step, a third of them.
    """

    name: str
    title: str
    columns: Mapping[str, Array]
    adjoints: Mapping[str, Array]  # of the discrete schemes
    cpu: Mapping[str, float]

    def as_json(self) -> dict[str, Any]:
        """Plain numbers and lists."""
        return {key: value.tolist() for key, value in self.columns.items()} | {"cpu_s": dict(self.cpu)}

    def entries(self) -> list[ReportedEntry]:
        """The gradients of the global form."""
        exact, printed = five_bar_ali3p.reference().gradients["psi"], five_bar_ali3p.printed()["global"]
        return [
            ReportedEntry(
                f"d{row}/d{parameter}",
                {"forward": self.columns["global"][i, j], "adjoint": self.adjoints["global"][i, j]},
                float(exact[i, j]),
                printed[i][j],
            )
            for i, row in enumerate(ROWS)
            for j, parameter in enumerate(five_bar.PARAMETERS)
        ]

    def table(self) -> str:
        """The columns beside the printed ones."""
        printed = five_bar_ali3p.printed()
        rows = [["derivative", *(head for column in self.columns for head in (column, "printed"))]]
        for i, row in enumerate(ROWS):
            for j, parameter in enumerate(five_bar.PARAMETERS):
                pairs = ((f"{self.columns[c][i, j]:.7g}", printed[c][i][j]) for c in self.columns)
                rows.append([f"d{row}/d{parameter}", *(text for pair in pairs for text in pair)])
        times = ", ".join(f"{column} {1e3 * seconds:.0f} ms" for column, seconds in self.cpu.items())
        discrete = max(np.abs(self.adjoints[c] / self.columns[c] - 1).max() for c in self.adjoints)
        return "\n".join(
            [
                f"{self.name}: {self.title}",
                f"Trapezoidal rule, steps of {five_bar_ali3p.STEP:g} s; reference: continuous equations.",
                *align(rows, left=(0,)),
                f"Direct and adjoint sensitivities of the schemes differ by {discrete:.0e} at most.",
                f"Processor times of the direct sensitivities, with their check at twice the step: {times}.",
            ]
        )


def compute(name: str, title: str, stage: Callable[[str], None]) -> Ali3pReproduction:
    """Differentiate the three forms and the continuous equations."""
    span, columns, adjoints, cpu = five_bar_ali3p.t_span, {}, {}, {}
    options: dict[str, Any] = {"adapter": "ali3p", "fixed_step": five_bar_ali3p.STEP, "t_eval": [span[1]]}
    for column in five_bar_ali3p.FORMS:
        stage(f"{column}: building")
        system = five_bar_ali3p.system(column)
        stage(f"{column}: direct sensitivities")
        times = []
        for _ in range(REPEATS):
            start = process_time()
            forward = dh.forward_sensitivity(system, span, **options)
            times.append(process_time() - start)
        cpu[column], columns[column] = min(times), np.asarray(forward.gradient["psi"])
        stage(f"{column}: adjoint")
        adjoints[column] = dh.adjoint_gradient(system, span, "psi", **options).gradient
    stage("reference")
    continuous = five_bar.system("smooth", Index2())
    columns["reference"] = dh.adjoint_gradient(continuous, span, "psi", **five_bar.tolerances).gradient
    return Ali3pReproduction(name, title, columns, adjoints, cpu)


def draw() -> Iterator[tuple[str, str, Any]]:
    """Yield the stem of the file, the caption and the figure."""
    mech, span = five_bar_ali3p.mechanism(), five_bar_ali3p.t_span
    runs = {
        label: dh.simulate(mech.build(ALI3P(varsigma=varsigma)), span, adapter="ali3p", fixed_step=FIGURE_STEP)
        for label, varsigma in (("with projections", 1.0), ("without projections", 0.0))
    }
    quantities = {label: _quantities(mech, sol) for label, sol in runs.items()}
    yield (
        "five_bar_ali3p_residuals",
        "residuals of the constraints, with and without projections",
        _residuals(quantities),
    )
    yield "five_bar_ali3p_energy", "change of the energy, with and without projections", _energy(quantities)


def _quantities(mech: Mechanism, sol: dh.Trajectory) -> dict[str, Array]:
    """Times, the largest residuals of the constraints and of their rates, and the energy of a run."""
    equations = EquationsOfMotion(mech)
    motion = equations.motion("free")
    one, two = (next(link.end for link in mech.links if link.end.name == name) for name in "12")
    three = next(link.end for link in mech.links if link.end.name == "3")
    place = next(link.start for link in mech.links if link.kind == "spring")
    L_s1, L_s2, m_A1, xG_A1, L_A1 = (mech.declarations[name].symbol for name in five_bar.PARAMETERS)
    energy: ca.MX = ca.dot(motion.v, motion.mass @ motion.v) / 2 + 9.81 * m_A1 * xG_A1 / L_A1 * one.y
    heights = (one.y + two.y, two.y + three.y, three.y)  # of the ends of the other bars
    for height, mass in zip(heights, five_bar.MASSES[1:], strict=True):
        energy += 9.81 * mass * height / 2
    for point, length in ((one, L_s1), (two, L_s2)):
        energy += 50.0 * (ca.norm_2(point.position - place.position) - length) ** 2
    acceleration = motion.phi_q @ motion.a + motion.gamma
    outputs = [ca.mmax(ca.fabs(value)) for value in (motion.phi, motion.velocity, acceleration)]
    inputs = [ca.vertcat(*(d.symbol for d in mech.of_kind("parameter"))), equations.q, equations.v, equations.a]
    function = ca.Function("quantities", inputs, [*outputs, energy])
    states = [np.column_stack([sol[getattr(c, kind).name()].ravel() for c in equations.coordinates]) for kind in "qva"]
    values = function.map(sol.t.size)(np.tile(sol.parameters[:, None], sol.t.size), *(state.T for state in states))
    names = ("positions", "velocities", "accelerations", "energy")
    return {"t": sol.t} | {name: np.asarray(value).ravel() for name, value in zip(names, values, strict=True)}


def _residuals(quantities: Mapping[str, Mapping[str, Array]]) -> Any:
    figure = plotting.new_figure(len(quantities), size=(7.0, 5.0))
    for axes, (label, values) in zip(figure.axes, quantities.items(), strict=True):
        for name in ("positions", "velocities", "accelerations"):
            axes.semilogy(values["t"], np.maximum(values[name], FLOOR), label=name, linewidth=0.9)
        axes.set(title=label, ylabel="largest residual")
        axes.legend(loc="upper right", fontsize="small")
    figure.axes[-1].set_xlabel("t, s")
    return figure


def _energy(quantities: Mapping[str, Mapping[str, Array]]) -> Any:
    figure = plotting.new_figure(size=(7.0, 3.2))
    axes = figure.axes[0]
    for label, values in quantities.items():
        axes.plot(values["t"], values["energy"] - values["energy"][0], label=label, linewidth=0.9)
    axes.set(xlabel="t, s", ylabel="change of the energy, J")
    axes.legend(fontsize="small")
    return figure
