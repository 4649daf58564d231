"""Outputs that are copied in blocks: the same bits, and code that grows with the computed entries only."""

from __future__ import annotations

import casadi as ca
import numpy as np
import pytest
from growing import spikes
from hypothesis import given
from hypothesis import strategies as st

import dae_hybrid as dh
from dae_hybrid.codegen.copies import in_blocks
from dae_hybrid.compile.builders import Builders

entries = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 4)), min_size=0, max_size=12)


@given(st.lists(entries, min_size=1, max_size=3))
def test_copies_constants_and_computed_entries_have_the_same_bits(stated):
    x, y = ca.SX.sym("x", 5), ca.SX.sym("y", 5)
    columns = [
        ca.vertcat(*([x[i], y[i], ca.SX(i / 3), ca.sin(x[i]) * y[4 - i]][kind] for kind, i in column))
        for column in stated
    ]
    function = ca.Function("f", [x, y], [ca.densify(c) if c.numel() else ca.SX(0, 1) for c in columns])
    point = np.linspace(-1, 2, 5), np.linspace(3, 4, 5)
    for one, other in zip(function.call(point), in_blocks(function).call(point), strict=True):
        assert np.array_equal(np.array(one), np.array(other))


def test_zeros_are_dropped_from_sparse_outputs_only():
    x = ca.SX.sym("x", 3)
    function = ca.Function("f", [x], [ca.densify(ca.diag(x)), ca.densify(ca.diag(x))])
    found = in_blocks(function, sparse=[1])
    assert [found.nnz_out(i) for i in range(2)] == [9, 3]


def test_functions_of_matrices_stay_as_they_are():
    x = ca.MX.sym("x", 3)
    function = ca.Function("f", [x], [2 * x])
    assert in_blocks(function) is function


def _statements(n: int) -> int:
    crossings = Builders(spikes(n), eliminate=True, direct=False).transitions().crossings()
    generator = ca.CodeGenerator("model")
    for functions in crossings.values():
        for function in functions.values():
            generator.add(function)
    return generator.dump().count(";")


def test_code_of_resets_of_single_states_grows_linearly():
    """With every state in every reset, twice the states had four times the statements."""
    assert _statements(60) < 2.2 * _statements(30)


def test_resets_of_single_states_have_the_gradient_of_their_statement():
    model = spikes(20)
    system, options = model.build(), {"rtol": 1e-10, "atol": 1e-12}
    adjoint = dh.adjoint_gradient(system, (0, 1), "G", **options)
    forward = dh.forward_sensitivity(system, (0, 1), **options)
    assert forward.trajectory.n_events > 50
    assert adjoint.gradient == pytest.approx(np.ravel(forward.gradient["G"]), rel=1e-10)
    steps = [dh.simulate(system, (0, 1), parameters={"p": 1.0 + h}, **options).functionals["G"] for h in (1e-5, -1e-5)]
    assert adjoint.gradient == pytest.approx((steps[0] - steps[1]) / 2e-5, rel=1e-6)
