"""The five-bar mechanism: every formulation beside quadruple precision, impacts, the latch, the jump matrix."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from mechanisms import FORMS

import dae_hybrid as dh
from dae_hybrid.mechanics import (
    Penalty,
    animate,
    constraint_residuals,
    draw_mechanism,
    jump_matrix,
    places,
)
from dae_hybrid.problems import five_bar

OPTIONS = {"rtol": 1e-10, "atol": 1e-12}
#: the formulations that keep the constraints
KEEP = ("index 2", "reduced")
#: systems of the first size, which its tests build once: every case and every formulation
FEW = {
    ("smooth", "index 1"), ("smooth", "reduced"), ("elastic", "index 1, stabilised"), ("newton", "index 2"),
    ("latch", "index 2, velocities only"),
}  # fmt: skip


def systems(cases, forms):
    """Parametrise a test by cases and formulations."""
    rows = [
        pytest.param(case, form, marks=[] if (case, form) in FEW else pytest.mark.campaign, id=f"{case}-{form}")
        for case in cases for form in forms
    ]  # fmt: skip
    return pytest.mark.parametrize(("case", "form"), rows)


@cache
def forward(case, form):
    return dh.forward_sensitivity(five_bar.system(case, FORMS[form]), five_bar.t_span, **OPTIONS)


def mechanical(events):
    """Without the choices of coordinates."""
    return [i for i, event in enumerate(events) if not event.transition.endswith(": coordinates")]


def off(value, exact):
    """Largest error of the known components, relative to the largest component."""
    known = np.isfinite(exact)
    return np.abs(np.asarray(value)[known] - exact[known]).max() / np.abs(exact[known]).max()


@systems(five_bar.CASES, FORMS)
def test_every_formulation_gives_the_values_gradients_and_events_of_the_reference(case, form):
    reference, fsa = five_bar.reference(case), forward(case, form)
    seen = mechanical(fsa.events)
    np.testing.assert_allclose([fsa.events[i].time for i in seen], reference.event_times, rtol=0, atol=1e-9)
    if seen:
        known = np.isfinite(reference.event_time_sensitivity)
        rates = fsa.event_time_sensitivity[seen]
        np.testing.assert_allclose(rates[known], reference.event_time_sensitivity[known], rtol=1e-7)
    for name, value in reference.values.items():
        np.testing.assert_allclose(fsa.functionals[name], value, rtol=1e-7)
        rows, exact = (np.atleast_2d(g) for g in (fsa.gradient[name], reference.gradients[name]))
        for row, true in zip(rows, exact, strict=True):
            assert off(row, true) < 1e-7


@systems(["smooth", "elastic", "latch"], FORMS)
def test_one_adjoint_sweep_of_a_vector_of_costs_gives_what_forward_analysis_gives(case, form):
    for name in ("psi", "z"):
        asa = dh.adjoint_gradient(five_bar.system(case, FORMS[form]), five_bar.t_span, name, **OPTIONS)
        assert asa.gradient.shape == (3, 5)
        for row, other in zip(asa.gradient, forward(case, form).gradient[name], strict=True):
            assert off(row, other) < 1e-8


@systems(five_bar.CASES, KEEP)
def test_constraints_are_kept(case, form):
    positions, velocities = constraint_residuals(five_bar.mechanism(case), forward(case, form).trajectory)
    assert positions.max() < 1e-13
    assert velocities.max() < 1e-13


def test_the_unstabilised_form_drifts_and_the_stabilised_one_does_not():
    drift = [
        constraint_residuals(five_bar.mechanism("elastic"), forward("elastic", form).trajectory)[0]
        for form in ("index 1", "index 1, stabilised")
    ]
    assert drift[0][-1] > 5 * drift[0][len(drift[0]) // 4]
    assert drift[0].max() > 5 * drift[1].max() > 0


def test_errors_of_the_penalty_form_are_those_of_one_over_alpha():
    mech = five_bar.mechanism("smooth")
    alpha = mech.parameter("alpha", 1e5)
    system = mech.build(Penalty(alpha))
    reference = five_bar.reference("smooth")
    alphas, errors = 10.0 ** np.array([4, 5, 6, 7]), []
    for value in alphas:
        fsa = dh.forward_sensitivity(
            system, five_bar.t_span, parameters={"alpha": value}, wrt=["L_s1", "L_A1"], rtol=1e-11, atol=1e-13
        )
        gradient = reference.gradients["psi"][:, [0, 4]]
        errors.append([off(fsa.functionals["psi"], reference.values["psi"]), off(fsa.gradient["psi"], gradient)])
    slopes = np.diff(np.log(errors), axis=0) / np.diff(np.log(alphas))[:, None]
    np.testing.assert_allclose(slopes, -1, atol=0.05)
    assert np.all(np.array(errors[-1]) < 2e-7)


def energy(sol, t):
    """Kinetic and potential energy of the five bars and two springs."""
    at = sol(t)
    point = {n: np.array([at[f"x{n}"], at[f"y{n}"]]) for n in "123"}
    speed = {n: np.array([at[f"vx{n}"], at[f"vy{n}"]]) for n in "123"}
    point |= {"A": np.array([-0.5, 0.0]), "B": np.array([0.5, 0.0])}
    speed |= {"A": np.zeros(2), "B": np.zeros(2)}
    total = 0.0
    for a, b, m in (("A", "1", 1.0), ("1", "2", 1.5), ("2", "3", 1.5), ("B", "3", 1.0)):
        va, vb = speed[a], speed[b]
        total += m / 6 * (va @ va + va @ vb + vb @ vb) + m * 9.81 * (point[a][1] + point[b][1]) / 2
    for n, rest in (("1", np.sqrt(5)), ("2", np.sqrt(17 / 4))):
        total += 50.0 * (np.linalg.norm(point[n] - point["B"]) - rest) ** 2
    return total


@pytest.mark.parametrize(
    ("case", "change"), [("smooth", 0.0), ("newton", 0.0), ("elastic", -53.95305 + 53.955)], ids=lambda v: str(v)
)
def test_the_energy_is_conserved_except_by_the_rule_that_keeps_vx(case, change):
    sol = dh.simulate(five_bar.system(case), five_bar.t_span, rtol=1e-11, atol=1e-13)
    start, end = energy(sol, 0.0), energy(sol, 5.0)
    assert start == pytest.approx(-53.955, abs=1e-3)
    assert end - start == pytest.approx(change, abs=1e-9 if not change else 1e-4)


# -- the jump matrix ------------------------------------------------------------------------------------


def stacked(fsa, matrix, state, names):
    """X with the rows of a jump matrix: state, Gamma, and Z of which only the change matters."""
    by_name = dict(zip(names, state, strict=True))
    by_name |= dict(zip(fsa.parameters, np.eye(len(fsa.parameters)), strict=True))
    zero = np.zeros(len(fsa.parameters))
    return np.array([by_name.get(name, zero) for name in matrix])


@pytest.mark.parametrize("case", ["elastic", "newton", "latch"])
def test_the_jump_matrix_carries_sensitivities_across_in_the_papers_blocks(case):
    mech, fsa = five_bar.mechanism(case), forward(case, "index 1")
    for i, (event, side) in enumerate(zip(fsa.events, fsa.event_sensitivities, strict=True)):
        jump = jump_matrix(mech, fsa.trajectory, i)
        modes = {mode.name: mode.differential.labels() for mode in fsa.trajectory.system.modes}
        before = stacked(fsa, jump.column_names, side.state_minus, modes[event.source])
        after = stacked(fsa, jump.row_names, side.state_plus, modes[event.target])
        n = 12
        np.testing.assert_allclose((jump.matrix @ before)[:n], after[:n], rtol=1e-9, atol=1e-9 * abs(after).max())
        dependent, free = (jump.columns[name].stop - jump.columns[name].start for name in ("Q_dep", "Q_dof"))
        assert (dependent, free) == ((5, 1) if event.source == "latched" else (4, 2))
        assert np.all(jump.block("Gamma", "Gamma") == np.eye(5))
        assert not jump.matrix[:, jump.columns["V_dep"]].any()
        costs = len(jump.row_names) - n - 5
        assert np.all(jump.block("Z", "Z") == np.eye(costs))
        assert not jump.block("Z", "V_dof")[: costs - 1].any() or case == "latch"


def test_the_jump_function_stands_in_its_block():
    jump = jump_matrix(
        five_bar.mechanism("elastic"), forward("elastic", "index 1").trajectory, 0, independent=("x2", "y2")
    )
    assert jump.row_names[4:6] == ("x2", "y2")
    np.testing.assert_allclose(jump.block("V_dof", "V_dof"), [[1, 0], [0, -1]], atol=1e-13)


def test_the_velocity_after_the_latch_has_the_derivative_that_the_printed_formula_misses():
    """Seed formula (54) leaves out terms of dt_eve/drho and gives -2.77207, -1.39618."""
    fsa = forward("latch", "index 2")
    names = list(fsa.trajectory.system.modes[0].differential.labels())
    row = fsa.event_sensitivities[0].state_plus[names.index("vx2")]
    np.testing.assert_allclose(row[:2], [-2.76234205, -1.44151212], rtol=1e-8)


def test_the_adjoint_goes_back_by_the_transpose_of_the_jump_matrix():
    system = five_bar.system("elastic", FORMS["index 1"])
    asa = dh.adjoint_gradient(system, five_bar.t_span, "z", **OPTIONS)
    names = system.modes[0].differential.labels()
    for i in (0, 4, 8):
        whole = asa.trajectory.jump_sensitivity(i)
        left, right = (asa.adjoint(asa.trajectory.events[i].time, side) for side in ("left", "right"))
        after = np.zeros((len(whole.rows), 3))
        after[: len(names)] = [right[name] for name in names]
        after[[whole.rows.index(f"z[{j}]") for j in range(3)], range(3)] = 1
        before = np.array([left[name] for name in names])
        np.testing.assert_allclose((whole.matrix.T @ after)[: len(names)], before, atol=1e-9 * abs(before).max())


def test_what_is_no_event_or_block_is_refused():
    mech, run = five_bar.mechanism("elastic"), forward("elastic", "index 1").trajectory
    with pytest.raises(dh.OptionError, match="has 9"):
        run.jump_sensitivity(9)
    with pytest.raises(dh.OptionError, match="no row 'nothing'"):
        run.jump_sensitivity(0).block("nothing", "x2")
    with pytest.raises(dh.OptionError, match="Q_dep"):
        jump_matrix(mech, run, 0).block("Q", "Q_dep")
    with pytest.raises(dh.OptionError, match="has 2"):
        jump_matrix(mech, run, 0, independent=("x2",))
    with pytest.raises(dh.UnsupportedError, match="w_free"):
        jump_matrix(mech, forward("elastic", "reduced").trajectory, 0)


# -- pictures -------------------------------------------------------------------------------------------


def test_quadratures_are_the_integrals_and_their_sensitivities_the_gradients():
    system = five_bar.mechanism("elastic", quadratures=True).build(FORMS["index 1"])
    fsa = dh.forward_sensitivity(system, five_bar.t_span, **OPTIONS)
    for i in range(3):
        assert fsa.trajectory[f"z{i + 1}"][-1] == pytest.approx(fsa.functionals["z"][i], rel=1e-8)
        np.testing.assert_allclose(fsa[f"z{i + 1}"][-1], fsa.gradient["z"][i], rtol=1e-7)


def test_multipliers_have_sensitivities_and_are_zero_where_their_constraint_is_not_active():
    fsa = forward("latch", "index 2")
    held = fsa.trajectory.modes == "latched"
    assert np.all(fsa.trajectory["lambda_ground"][~held] == 0)
    assert np.all(fsa.trajectory["lambda_ground"][held] > 9)
    assert np.abs(fsa["lambda_ground"][held]).max() > 1
    assert not fsa["lambda_ground"][~held].any()


def test_pictures_show_the_points_where_they_are(tmp_path):
    mech, run = five_bar.mechanism("elastic"), forward("elastic", "index 2").trajectory
    points = {p.name: p for link in mech.links for p in (link.start, link.end)}
    at = places(mech, run, [points["A"], points["2"]], [0.0, 5.0])
    np.testing.assert_allclose(at[:, 0], [[-0.5, 0], [-0.5, 0]])
    np.testing.assert_allclose(at[1, 1], [0.128438378206, -2.01766042759], rtol=1e-8)
    figure = draw_mechanism(mech, run, 1.0)
    assert len(figure.axes[0].lines) == 1 + 6 + 1
    film = animate(mech, run, rate=2.0)
    assert film.frames == 11
    path = film.save(tmp_path / "new" / "run.gif")
    assert path.read_bytes().startswith(b"GIF89a")
    with pytest.raises(dh.OptionError, match=r"\.gif"):
        film.save(tmp_path / "run.png")
    with pytest.raises(dh.OptionError, match="positive"):
        animate(mech, run, rate=0.0)
