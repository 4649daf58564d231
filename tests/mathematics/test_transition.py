"""The linearised transition, forwards and transposed, without any solver."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dae_hybrid as dh
from dae_hybrid.numerics.algebraic import closed_by_continuity, solve_algebraic
from dae_hybrid.system.derivative_conditions import Conditions
from dae_hybrid.system.linearisation import TransitionLinearisation, chain

QUICK = settings(derandomize=True, deadline=None, max_examples=60)
numbers = st.floats(-3, 3, allow_subnormal=False)


@st.composite
def linearisations(draw: Any) -> TransitionLinearisation:
    n, m, p, k = (draw(st.integers(low, 4)) for low in (1, 1, 0, 1))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    rate = draw(numbers.filter(lambda r: abs(r) > 1e-2))
    return TransitionLinearisation(
        h_w=rng.normal(size=n), h_p=rng.normal(size=p), rate=rate,
        R_w=rng.normal(size=(m, n)), R_p=rng.normal(size=(m, p)), R_t=rng.normal(size=m),
        flow_minus=rng.normal(size=n), flow_plus=rng.normal(size=m),
        integrand_minus=rng.normal(size=k), integrand_plus=rng.normal(size=k),
    )  # fmt: skip


@QUICK
@given(linearisations(), st.integers(1, 3), st.integers(0, 2**32 - 1))
def test_backward_is_the_transpose_of_forward(map_: TransitionLinearisation, d: int, seed: int) -> None:
    """<L+, S+> + dG = <L-, S-> + <share, dp> for every L+, S- and dp: the duality of the two analyses."""
    rng = np.random.default_rng(seed)
    (m, n), p, k = map_.R_w.shape, map_.h_p.size, map_.integrand_minus.size
    before, directions, after = rng.normal(size=(n, d)), rng.normal(size=(p, d)), rng.normal(size=(k, m))
    tau, jumped, cost = map_.forward(before, directions)
    back, share, earlier = map_.backward(after, np.zeros(k))
    np.testing.assert_array_equal(earlier, 0)
    assert tau.shape == (d,)
    assert jumped.shape == (m, d)
    assert cost.shape == (k, d)
    assert back.shape == (k, n)
    assert share.shape == (k, p)
    scale = 1 + np.abs(after) @ np.abs(jumped) + np.abs(cost)
    assert np.all(
        np.abs(after @ jumped + cost - back @ before - share @ directions) < 1e-10 * scale * (1 + abs(1 / map_.rate))
    )


@QUICK
@given(linearisations(), st.integers(0, 2**32 - 1))
def test_a_cost_that_reads_the_event_time(map_: TransitionLinearisation, seed: int) -> None:
    """`clock` is dG/dt_i: it adds clock tau."""
    rng = np.random.default_rng(seed)
    (m, n), p, k = map_.R_w.shape, map_.h_p.size, map_.integrand_minus.size
    before, directions, clock = rng.normal(size=(n, 2)), rng.normal(size=(p, 2)), rng.normal(size=k)
    tau, _, _ = map_.forward(before, directions)
    zero = np.zeros((k, m))
    with_clock, share, _ = map_.backward(zero, clock)
    without, share_without, _ = map_.backward(zero, np.zeros(k))
    difference = (with_clock - without) @ before + (share - share_without) @ directions
    np.testing.assert_allclose(difference, np.outer(clock, tau), rtol=1e-9, atol=1e-9)


@QUICK
@given(linearisations())
def test_a_transition_that_does_nothing(map_: TransitionLinearisation) -> None:
    """Identity, the same flow and the same integrand: the event time does not matter."""
    n, p = map_.h_w.size, map_.h_p.size
    nothing = TransitionLinearisation(
        map_.h_w, map_.h_p, map_.rate, np.eye(n), np.zeros((n, p)), np.zeros(n), map_.flow_minus, map_.flow_minus,
        map_.integrand_minus, map_.integrand_minus,
    )  # fmt: skip
    before, directions = np.eye(n), np.zeros((p, n))
    tau, after, cost = nothing.forward(before, directions)
    np.testing.assert_allclose(after, before, atol=1e-13 * (1 + np.abs(tau).max()))
    np.testing.assert_array_equal(cost, 0)
    back, share, _ = nothing.backward(np.tile(np.eye(n)[0], (map_.integrand_minus.size, 1)), 0 * map_.integrand_minus)
    np.testing.assert_allclose(back, np.tile(np.eye(n)[0], (map_.integrand_minus.size, 1)), atol=1e-12)
    np.testing.assert_allclose(share, 0, atol=1e-12)


@QUICK
@given(linearisations(), linearisations(), st.integers(0, 2**32 - 1))
def test_an_event_that_follows_another_has_its_time(
    first: TransitionLinearisation, second: TransitionLinearisation, seed: int
) -> None:
    """Two maps of one instant, the second at the time of the first: the pair is dual as well."""
    rng = np.random.default_rng(seed)
    (m, n), p, k, last = first.R_w.shape, first.h_p.size, first.integrand_minus.size, second.R_w.shape[0]
    second = dataclasses.replace(
        second, h_w=np.zeros(m), h_p=np.zeros(p), R_w=rng.normal(size=(last, m)), R_p=rng.normal(size=(last, p)),
        flow_minus=rng.normal(size=m), integrand_minus=rng.normal(size=k), integrand_plus=rng.normal(size=k),
        follows=True, rate=np.nan,
    )  # fmt: skip
    before, directions, after = rng.normal(size=(n, 2)), rng.normal(size=(p, 2)), rng.normal(size=(k, last))
    tau, between, cost = first.forward(before, directions)
    same, end, more = second.forward(between, directions, tau)
    np.testing.assert_array_equal(same, tau)
    back, share, clock = second.backward(after, np.zeros(k))
    back, further, none = first.backward(back, clock)
    np.testing.assert_array_equal(none, 0)
    np.testing.assert_allclose(
        after @ end + cost + more,
        back @ before + (share + further) @ directions,
        rtol=1e-8,
        atol=1e-8 / abs(first.rate),
    )
    tau, _, _ = second.forward(between, directions)
    np.testing.assert_array_equal(tau, 0)  # nothing before it: the start of the run


def test_components_can_be_selected() -> None:
    map_ = TransitionLinearisation(
        np.ones(1), np.ones(1), 2.0, np.ones((1, 1)), np.ones((1, 1)), np.ones(1), np.ones(1), np.ones(1),
        np.array([1.0, 2.0, 3.0]), np.array([0.0, 5.0, 1.0]),
    )  # fmt: skip
    part = map_.select([2, 0])
    np.testing.assert_array_equal(part.integrand_minus, [3, 1])
    np.testing.assert_array_equal(part.integrand_plus, [1, 0])
    assert part.R_w is map_.R_w


def test_a_jump_by_hand() -> None:
    """The bouncing ball: saltation matrix [[-e, 0], [-(1 + e) g / v, -e]]."""
    e, g, v = 0.8, 9.81, -4.0
    map_ = TransitionLinearisation(
        h_w=np.array([1.0, 0.0]), h_p=np.zeros(2), rate=v,
        R_w=np.array([[1.0, 0.0], [0.0, -e]]), R_p=np.array([[0.0, 0.0], [-v, 0.0]]), R_t=np.zeros(2),
        flow_minus=np.array([v, -g]), flow_plus=np.array([-e * v, -g]),
        integrand_minus=np.zeros(1), integrand_plus=np.zeros(1),
    )  # fmt: skip
    _, after, _ = map_.forward(np.eye(2), np.zeros((2, 2)))
    np.testing.assert_allclose(after, [[-e, 0], [-(1 + e) * g / v, -e]])
    back, _, _ = map_.backward(np.array([[0.0, 1.0]]), np.zeros(1))
    np.testing.assert_allclose(back, after[1:])


# -- of a built system --------------------------------------------------------------------------------------


def perturbed_maps(system: dh.HybridSystem, span: Any, index: int) -> tuple[Any, Any, Any]:
    """Numerical derivatives of the jump at a recorded event, and the linearisation it should match."""
    event = dh.simulate(system, span, rtol=1e-10, atol=1e-12).events[index]
    map_ = system.transitions[event.index]
    source, target, p = system.modes[map_.source], system.modes[map_.target or 0], system.nominal
    ny, nm = source.differential.size, event.memory_minus.size

    def jump(w: np.ndarray, q: np.ndarray, t: float) -> np.ndarray:
        y, m = w[:ny], w[ny:]
        z = event.algebraic_minus

        def residual(z: np.ndarray) -> tuple[Any, Any, Any]:
            k, k_z, size = source.kernels["closure"](t, np.concatenate((y, z)), m, q)
            return k, k_z, size

        if z.size:
            z = solve_algebraic(residual, z, mode="", variables=(), time=t)
        x, memory, *_ = map_.apply(target, t, np.concatenate((y, z)), m, q, dh.Options())[0]
        return np.concatenate((x[: target.differential.size], memory))

    w0 = np.concatenate((event.state_minus, event.memory_minus))
    h = 1e-6
    columns = []
    for i in range(ny + nm + p.size + 1):
        sides = []
        for sign in (1, -1):
            d = np.zeros(ny + nm + p.size + 1)
            d[i] = sign * h
            sides.append(jump(w0 + d[: ny + nm], p + d[ny + nm : -1], event.time + d[-1]))
        columns.append((sides[0] - sides[1]) / (2 * h))
    numerical = np.array(columns).T
    clock = np.array([span[0], event.count])
    return map_.linearise(source, target, event, p, clock, Conditions()), numerical, (ny + nm, p.size)


@pytest.mark.parametrize(("name", "span"), [("ball", (0, 1)), ("circuit", (0, 1)), ("counter", (0, 1))])
def test_linearisation_against_differences_of_the_jump(name: str, span: Any, built: Any, models: Any) -> None:
    found, numerical, (nw, np_) = perturbed_maps(built(getattr(models, name)), span, 0)
    np.testing.assert_allclose(found.R_w, numerical[:, :nw], atol=1e-7)
    np.testing.assert_allclose(found.R_p, numerical[:, nw : nw + np_], atol=1e-7)
    np.testing.assert_allclose(found.R_t, numerical[:, -1], atol=1e-7)


@pytest.fixture(scope="module")
def with_memory() -> dh.HybridSystem:
    m = dh.HybridModel("memory")
    a = m.parameter("a", 0.7)
    y, z = m.differential("y"), m.algebraic("z", guess=1.0)
    z_star, s = m.memory("z_star", of=z, initial=0.2), m.memory("s", initial=a)
    run = m.mode("run", ode={y: 1 + z / 5}, algebraic=[z - y * a - z_star / 3 - s * z**2 / 20])
    m.transition(
        run, run, guard=y + z - 1, direction="rising", reset={y: y - 0.3 * z * m.time}, memory={s: s + m.post(z) * y}
    )
    m.initial(run, {y: 0.0})
    return m.build(native=False)


def test_linearisation_with_memory_and_algebraic_variables(with_memory: dh.HybridSystem) -> None:
    for index in (0, 1):
        found, numerical, (nw, np_) = perturbed_maps(with_memory, (0, 3), index)
        np.testing.assert_allclose(found.R_w, numerical[:, :nw], atol=1e-7)
        np.testing.assert_allclose(found.R_p, numerical[:, nw : nw + np_], atol=1e-7)
        np.testing.assert_allclose(found.R_t, numerical[:, -1], atol=1e-7)


def test_chain_is_the_implicit_function_theorem(with_memory: dh.HybridSystem) -> None:
    mode, p = with_memory.modes[0], with_memory.nominal
    event = dh.simulate(with_memory, (0, 1)).events[0]
    by = chain(mode, event.time, event.x_minus, event.memory_minus, p)
    k_u = mode.kernels["closure_by_u"](event.time, event.x_minus, event.memory_minus, p)[0]
    np.testing.assert_allclose(k_u @ by, 0, atol=1e-12)
    kept = [0, 2, 3, 4, 5]  # y, memory, parameter and time are themselves
    np.testing.assert_array_equal(by[kept], np.eye(5))


# -- the linear algebra underneath --------------------------------------------------------------------------


@QUICK
@given(st.integers(1, 5), st.integers(0, 5), st.integers(0, 2**32 - 1), st.floats(1e-8, 1e8))
def test_what_continuity_closes(n: int, cancelled: int, seed: int, scale: float) -> None:
    """Rows that cancel leave one variable each to continuity; with them the matrix is regular, whatever its scale."""
    cancelled = min(cancelled, n)
    rng = np.random.default_rng(seed)
    size = scale * (np.eye(n) + 0.1 * rng.uniform(size=(n, n)))
    matrix = size.copy()
    rows = rng.permutation(n)[:cancelled]
    matrix[rows] = 1e-14 * scale * rng.normal(size=(cancelled, n))
    kept = closed_by_continuity(matrix, size)
    assert kept.shape == (cancelled, n)
    np.testing.assert_array_equal(np.flatnonzero(kept.sum(axis=0)), np.sort(rows))
    assert np.linalg.matrix_rank(np.vstack((matrix / scale, kept)), tol=1e-6) == n


def test_continuity_refuses_to_guess() -> None:
    for matrix, size in (
        (np.diag([1.0, 1e-10]), np.eye(2)),  # cancels or not?
        (np.ones((2, 2)), np.ones((2, 2))),  # nothing cancels, and still singular
        (np.diag([0.0, 0.0]), np.array([[1.0, 0.0], [1.0, 0.0]])),  # both are about the first variable
    ):
        with pytest.raises(np.linalg.LinAlgError):
            closed_by_continuity(matrix, size)
    assert closed_by_continuity(np.zeros((0, 0)), np.zeros((0, 0))).shape == (0, 0)


def test_newton_is_damped() -> None:
    """atan has no convergence without damping from 10."""

    def system(z: np.ndarray) -> tuple[Any, Any, Any]:
        return np.arctan(z), np.diag(1 / (1 + z**2)), np.abs(z) + 1e-300

    found = solve_algebraic(system, np.array([10.0]), mode="m", variables=("z",), time=0.0)
    assert abs(found[0]) < 1e-12


def test_newton_gives_up_with_the_residual() -> None:
    def system(z: np.ndarray) -> tuple[Any, Any, Any]:
        return z**2 + 1, np.diag(2 * z), z**2 + 1

    with pytest.raises(dh.ConsistencyError, match="guess") as caught:
        solve_algebraic(system, np.array([3.0]), mode="m", variables=("z",), time=1.5)
    assert (caught.value.mode, caught.value.time, caught.value.variables) == ("m", 1.5, ("z",))
