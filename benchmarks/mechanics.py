"""The five-bar mechanism in every formulation: errors, residuals, times; the penalty form as alpha grows; index 3.

``python benchmarks/mechanics.py [--write]`` prints three tables; ``--write`` puts them into docs/mechanics.md. Times
are processor times, medians of several, as ratios to a plain solve in the same formulation; those of index 3 in ms.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from measuring import cpu_ms, put

import dae_hybrid as dh
from dae_hybrid.mechanics import Index1, Index2, Penalty, Reduced, constraint_residuals
from dae_hybrid.problems import five_bar, five_bar_ali3p
from dae_hybrid.tables import markdown

PAGE = Path(__file__).resolve().parent.parent / "docs" / "mechanics.md"
FORMS = {
    '`Reduced(independent=("x2", "y2"))`': Reduced(("x2", "y2")),
    "`Reduced()`": Reduced(),
    "`Index2()`": Index2(),
    "`Index2(positions=False)`": Index2(positions=False),
    "`Index1(omega=10)`": Index1(omega=10.0),
    "`Index1()`": Index1(),
    "`Penalty(alpha=1e7)`": Penalty(alpha=1e7),
}
WRT = five_bar.PARAMETERS[:2]
OPTIONS = {"rtol": 1e-10, "atol": 1e-12}
ALPHAS = 10.0 ** np.arange(4, 9)
REPEATS = 5
#: of index 3, in seconds
STEPS = (2e-3, 1e-3)


def off(value, exact) -> float:
    return float(np.abs(value - exact).max() / np.abs(exact).max())


def formulations() -> list[list[str]]:
    rows = [
        ["formulation", "z", "dz/drho direct", "dz/drho adjoint", "direct - adjoint", "positions", "velocities",
         "solve, ms", "direct / solve", "adjoint / solve"]
    ]  # fmt: skip
    reference, span = five_bar.reference("elastic"), five_bar.t_span
    exact = reference.gradients["z"][:, :2]
    for label, form in FORMS.items():
        system = five_bar.mechanism("elastic").build(form)
        fsa = dh.forward_sensitivity(system, span, wrt=WRT, **OPTIONS)
        asa = dh.adjoint_gradient(system, span, "z", wrt=WRT, **OPTIONS)
        residuals = [r.max() for r in constraint_residuals(five_bar.mechanism("elastic"), fsa.trajectory)]
        plain = cpu_ms(lambda system=system: dh.simulate(system, span, **OPTIONS), REPEATS)
        direct = cpu_ms(lambda system=system: dh.forward_sensitivity(system, span, wrt=WRT, **OPTIONS), REPEATS)
        adjoint = cpu_ms(lambda system=system: dh.adjoint_gradient(system, span, "z", wrt=WRT, **OPTIONS), REPEATS)
        errors = [
            max(off(a, b) for a, b in zip(found, true, strict=True))
            for found, true in (
                (fsa.gradient["z"], exact),
                (asa.gradient, exact),
                (asa.gradient, fsa.gradient["z"]),
            )
        ]
        value = np.abs(asa.value / reference.values["z"] - 1).max()
        rows.append(
            [label, *(f"{e:.0e}" for e in (value, *errors, *residuals)), f"{plain:.0f}", f"{direct / plain:.1f}",
             f"{adjoint / plain:.1f}"]
        )  # fmt: skip
    return rows


def penalties() -> list[list[str]]:
    mech = five_bar.mechanism("smooth")
    system = mech.build(Penalty(mech.parameter("alpha", 1e5)))
    reference = five_bar.reference("smooth")
    rows = [["alpha", "error of psi", "slope", "error of dpsi/drho", "slope", "largest Phi"]]
    before = None
    for alpha in ALPHAS:
        fsa = dh.forward_sensitivity(
            system, five_bar.t_span, parameters={"alpha": alpha}, wrt=five_bar.PARAMETERS, rtol=1e-11, atol=1e-13
        )
        found = [
            off(fsa.functionals["psi"], reference.values["psi"]),
            max(off(a, b) for a, b in zip(fsa.gradient["psi"], reference.gradients["psi"], strict=True)),
        ]
        slopes = ["", ""]
        if before is not None:
            slopes = [f"{np.log10(a / b):.2f}" for a, b in zip(found, before, strict=True)]
        residual = constraint_residuals(mech, fsa.trajectory)[0].max()
        rows.append([f"{alpha:.0e}", f"{found[0]:.1e}", slopes[0], f"{found[1]:.1e}", slopes[1], f"{residual:.0e}"])
        before = found
    return rows


def index3() -> list[list[str]]:
    """Cases, forms, steps: errors of values and gradients against the references, and times of a call."""
    rows = [["case", "form", "step, ms", "value", "gradient", "order", "simulate, ms", "direct, ms", "adjoint, ms"]]
    for case in five_bar.CASES:
        exact = five_bar.reference(case)
        name = "psi" if case == "smooth" else "z"
        known = np.isfinite(exact.gradients[name]).all(axis=0)
        for label, (formulation, coordinates) in five_bar_ali3p.FORMS.items():
            if label == "RTdyn1" and case != "smooth":  # equal to RTdyn0 but for rounding
                continue
            system, before = five_bar.mechanism(case, coordinates=coordinates).build(formulation), np.nan
            for step in STEPS:
                calls = {"adapter": "ali3p", "fixed_step": step, "t_eval": [five_bar.t_span[1]]}
                simulate, direct, adjoint = (
                    lambda of=of, more=more, system=system, calls=calls: of(system, five_bar.t_span, *more, **calls)
                    for of, more in (
                        (dh.simulate, ()), (dh.forward_sensitivity, ()), (dh.adjoint_gradient, (name,)),
                    )
                )  # fmt: skip
                found = direct()
                errors = (
                    off(found.functionals[name], exact.values[name]),
                    max(
                        off(a[known], b[known])
                        for a, b in zip(found.gradient[name], exact.gradients[name], strict=True)
                    ),
                )
                order = "" if np.isnan(before) else f"{np.log2(before / errors[1]):.2f}"
                times = (f"{cpu_ms(call, REPEATS):.0f}" for call in (simulate, direct, adjoint))
                rows.append([case, label, f"{1e3 * step:g}", *(f"{e:.1e}" for e in errors), order, *times])
                before = errors[1]
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="put the tables into docs/mechanics.md")
    parser.add_argument("--only", nargs="+", choices=TABLES, help="these tables")
    arguments = parser.parse_args()
    tables = {name: markdown(rows()) for name, rows in TABLES.items() if name in (arguments.only or TABLES)}
    for table in tables.values():
        print(table, end="\n\n")
    if arguments.write:
        put(PAGE, tables)


TABLES = {"formulations": formulations, "penalty": penalties, "index3": index3}

if __name__ == "__main__":
    main()
