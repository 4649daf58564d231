"""Digests: the same from compiled code and from single calls, and different for different sequences."""

from __future__ import annotations

import pickle
from typing import Any

import casadi as ca
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dae_hybrid as dh
from dae_hybrid.conditions.sequences import codes_of, digest
from dae_hybrid.problems import em_hysteresis


def stopped() -> dh.HybridSystem:
    """An oscillator with a stop, a clock, a switch at a time, measurements, and a signal with knots."""
    m = dh.HybridModel("stopped")
    k, e, at = m.parameter("k", 4.0), m.parameter("e", 0.8), m.parameter("at", 2.3)
    x, v = m.differential("x"), m.differential("v")
    f = m.signal("f", np.linspace(0, 6, 13), np.sin(np.arange(13.0)))
    run = m.mode("run", ode={x: v, v: -k * x - 0.1 * v + 0.1 * f})
    m.transition(run, run, guard=x + 0.5, direction="falling", reset={v: -e * v}, name="stop")
    m.transition(run, run, guard=v, direction="both", memory={m.memory("n", initial=0.0): x}, name="turn")
    m.transition(run, run, at=at, reset={v: v + 0.1}, name="kick")
    m.transition(run, run, every=1.7, reset={v: 0.9 * v}, name="tick")
    m.initial(run, {x: 1.0, v: 0.0})
    m.functional("fit", at_times={0.0: x, 1.1: x**2, 4.2: x, 6.0: x})
    m.functional("G", integrand=x**2)
    return m.build()


STOPPED = stopped()


@pytest.mark.parametrize("gradient", [None, "forward", "adjoint"])
def test_compiled_code_and_single_calls_agree(gradient: Any) -> None:
    rng = np.random.default_rng(1)
    rows = STOPPED.nominal * rng.uniform(0.8, 1.2, (12, 3))
    native = dh.batch(STOPPED, (0, 6), parameters=rows, gradient=gradient, rtol=1e-9)
    python = dh.batch(STOPPED, (0, 6), parameters=rows, gradient=gradient, rtol=1e-9, native_events=False)
    assert native.native.sum() >= 8
    assert not python.native.any()
    np.testing.assert_array_equal(native.digest, python.digest)
    assert len(set(native.digest.tolist())) > 3
    for i in range(len(rows)):
        run = dh.simulate(STOPPED, (0, 6), parameters=rows[i], rtol=1e-9)
        assert digest(codes_of(run)) == native.digest[i]
        assert dh.EventSequence.of(run).n_events == native.n_events[i]


def test_prepared_runs_have_the_digest_of_their_single_call() -> None:
    run = dh.prepare(em_hysteresis.system(), (0, 10), derivatives="adjoint")(None)
    assert run.is_native
    sequence = dh.EventSequence.of(run.trajectory)
    assert sequence.digest == run.digest
    assert sequence.names[:2] == ("loading->unloading", "unloading->loading")


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(-3, 9), max_size=8), st.lists(st.integers(-3, 9), max_size=8))
def test_digests_tell_sequences_apart(one: list[int], two: list[int]) -> None:
    a, b = (digest(np.array(own, dtype=np.int64)) for own in (one, two))
    assert (a == b) == (one == two)
    assert -(2**63) <= a < 2**63


def test_relations_count_on_both_sides() -> None:
    m = dh.HybridModel("relation")
    a, x = m.parameter("a", 1.0), m.differential("x")
    m.initial(m.mode("run", ode={x: ca.if_else(x > 0.5, 1.0, 2.0)}), {x: a})
    m.functional("G", terminal=x)
    system = m.build()
    found = dh.batch(system, (0, 0.1), parameters={"a": [0.1, 0.2, 0.45, 0.7]}, gradient="adjoint")
    assert found.digest[0] == found.digest[1]
    assert len(set(found.digest.tolist())) == 3


def test_differences_in_words() -> None:
    runs = [dh.simulate(STOPPED, (0, 6), parameters={"at": at}) for at in (0.3, 2.3)]
    one, two = (dh.EventSequence.of(run) for run in runs)
    assert one != two
    assert one.difference(two).startswith("at event 1: kick or ")
    assert str(len(one)) in repr(one)
    assert pickle.loads(pickle.dumps(one)) == one
    assert {one: 1}[one] == 1


def test_long_sequences_are_kept_in_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dae_hybrid.conditions.sequences.MAX_CODES", 3)
    runs = [dh.simulate(STOPPED, (0, 6), parameters={"e": e}) for e in (0.8, 0.5)]
    one, two = (dh.EventSequence.of(run) for run in runs)
    assert not one.is_whole
    assert one.codes.size == 3
    assert one != two
    assert one.difference(two) == "beyond event 3"
    assert str(one).endswith(", ...")
