"""Right-hand sides with networks: products with transposed derivatives, matrices that stay matrices, many weights."""

from __future__ import annotations

import runpy
from itertools import pairwise
from pathlib import Path

import casadi as ca
import numpy as np
import pytest

import dae_hybrid as dh
from dae_hybrid.codegen.compiler import Compilation, Finished, compile_source
from dae_hybrid.codegen.dense_products import by_columns
from dae_hybrid.codegen.hoisting import hoisted
from dae_hybrid.codegen.products import inlined, operations, parts_of, products

OPTIONS = {"rtol": 1e-9, "atol": 1e-11}
SPAN = (0.0, 3.0)


def network(sizes: tuple[int, ...], *, shared: bool = False, components: int = 1) -> dh.HybridModel:
    """An oscillator that switches, pushed by a network with biases in two modes; `shared` uses a matrix twice."""
    m, rng = dh.HybridModel("network"), np.random.default_rng(3)
    n = sizes[0]
    x, gain = m.differential("x", size=n), m.parameter("gain", 0.3)
    past = m.memory("past", of=x, initial=np.linspace(1.0, 0.5, n))
    value = x - 0.1 * past
    for i, (columns, rows) in enumerate(pairwise(sizes)):
        w = ca.reshape(m.parameter(f"w{i}", rng.normal(size=rows * columns) / np.sqrt(columns)), rows, columns)
        value = w @ value + m.parameter(f"b{i}", 0.1 * rng.normal(size=rows))
        if i < len(sizes) - 2:
            value = ca.tanh(value)
        if shared and rows == columns:
            value = ca.tanh(w @ value)
    turn = np.kron(np.eye(n // 2), [[0.0, 4.0], [-4.0, 0.0]])
    left = m.mode("left", ode={x: turn @ x - 0.2 * x + gain * value})
    right = m.mode("right", ode={x: turn @ x - 0.3 * x - gain * value})
    m.transition(left, right, guard=x[0], direction="falling", reset={x: 0.9 * x})
    m.transition(right, left, guard=x[0], direction="rising")
    m.initial(left, {x: np.linspace(1.0, 0.5, n)})
    costs = [ca.sumsqr(x) * (1 + i) + gain**2 for i in range(components)]
    m.functional("G", integrand=ca.vertcat(*costs), terminal=x[:components])
    return m


def compiled_with_products(system: dh.HybridSystem) -> bool:
    return all("pullback" in mode.equations.compiled for mode in system.modes)


@pytest.mark.parametrize("method", ["erk", "bdf", "adams"])
def test_forward_adjoint_and_differences_agree(method: str) -> None:
    system = network((4, 20, 20, 4), shared=True).build()
    assert compiled_with_products(system)
    wrt = ["gain", "w0", "b1"]
    asa = dh.adjoint_gradient(system, SPAN, "G", method=method, **OPTIONS)
    assert len(asa.trajectory.events) >= 3
    fsa = dh.forward_sensitivity(system, SPAN, method=method, wrt=wrt, **OPTIONS)
    places = np.concatenate([np.r_[system.parameters[name]] for name in wrt])
    np.testing.assert_allclose(asa.gradient[places], fsa.gradient["G"], rtol=1e-5, atol=1e-7)
    along, step = np.random.default_rng(0).normal(size=system.parameters.size), 1e-5
    values = [
        dh.simulate(system, SPAN, parameters=system.nominal + s * along, **OPTIONS).functionals["G"]
        for s in (step, -step)
    ]
    assert (values[0] - values[1]) / (2 * step) == pytest.approx(asa.gradient @ along, rel=1e-5)


@pytest.mark.parametrize("method", ["erk", "bdf"])
@pytest.mark.parametrize("shared", [False, True])
def test_products_give_what_matrices_give(method: str, shared: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    options = {"method": method, "rtol": 1e-6, "atol": 1e-8}
    by_products = network((4, 20, 20, 4), shared=shared, components=2).build()
    found = dh.adjoint_gradient(by_products, SPAN, "G", **options)
    monkeypatch.setattr("dae_hybrid.compile.mode_system.products", lambda *_, **__: {})
    matrices = network((4, 20, 20, 4), shared=shared, components=2).build()
    assert compiled_with_products(by_products)
    assert not compiled_with_products(matrices)
    expected = dh.adjoint_gradient(matrices, SPAN, "G", **options)
    np.testing.assert_allclose(found.gradient, expected.gradient, rtol=1e-10, atol=1e-12)


def test_some_of_the_parameters() -> None:
    system = network((4, 20, 20, 4)).build()
    all_ = dh.adjoint_gradient(system, SPAN, **OPTIONS).gradient
    some = dh.adjoint_gradient(system, SPAN, wrt=["b0", "gain"], **OPTIONS).gradient
    places = np.concatenate([np.r_[system.parameters[name]] for name in ("b0", "gain")])
    np.testing.assert_allclose(some, all_[places], rtol=1e-6, atol=1e-9)


def test_interpreted_equations_give_the_same() -> None:
    compiled, interpreted = (network((4, 12, 4)).build(native=native) for native in (True, False))
    found, expected = (dh.adjoint_gradient(s, SPAN, **OPTIONS).gradient for s in (compiled, interpreted))
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-8)


def test_a_linear_system_of_many_parameters_needs_no_tape() -> None:
    m, n = dh.HybridModel("linear"), 12
    a = m.parameter("a", (np.diag(-np.arange(1.0, n + 1)) + 0.01).ravel(order="F"))
    x = m.differential("x", size=n)
    m.initial(m.mode("run", ode={x: ca.reshape(a, n, n) @ x}), {x: np.ones(n)})
    m.functional("G", terminal=ca.sum1(x))
    system = m.build()
    asa = dh.adjoint_gradient(system, (0.0, 1.0), method="bdf", **OPTIONS)
    by_p = asa.gradient.reshape(n, n, order="F")
    from scipy.linalg import expm_frechet

    matrix, entry = system.nominal.reshape(n, n, order="F"), np.zeros((n, n))
    entry[2, 5] = 1.0
    expected = np.ones(n) @ expm_frechet(matrix, entry)[1] @ np.ones(n)
    assert by_p[2, 5] == pytest.approx(expected, rel=1e-6)


def test_weights_are_no_texts_of_c(monkeypatch: pytest.MonkeyPatch) -> None:
    statements: list[int] = []

    def count(*texts: str, **options: object) -> Compilation:
        statements.append(sum(text.count(";\n") for text in texts))
        return Finished(None)

    monkeypatch.setattr("dae_hybrid.codegen.kernels.begin", count)
    for hidden in (40, 400):
        network((4, hidden, 4)).build()
    assert statements[1] <= statements[0]


def test_what_depends_on_parameters_alone_is_taken_out_of_operations_on_vectors() -> None:
    m = dh.HybridModel("mean")
    p, x = m.parameter("p", np.linspace(0.5, 1.5, 600)), m.differential("x")
    m.initial(m.mode("run", ode={x: 1 - ca.sum1(ca.sqrt(p)) / 600 * x}), {x: 0.0})
    m.functional("G", terminal=x)
    system = m.build()
    compiled = system.modes[0].equations.compiled
    assert operations(compiled["flow"].function) < 60
    assert operations(compiled["constants"].function) > 600
    rate = np.sqrt(system.nominal).mean()
    by_rate = (np.exp(-2 * rate) * (1 + 2 * rate) - 1) / rate**2
    found = dh.adjoint_gradient(system, (0.0, 2.0), **OPTIONS).gradient
    np.testing.assert_allclose(found, by_rate / (1200 * np.sqrt(system.nominal)), rtol=1e-6)


def test_products_are_those_with_derivatives_and_transposed_ones() -> None:
    t, x, m, p = (ca.MX.sym(k, n) for k, n in zip("txmp", (1, 3, 2, 400), strict=True))
    rates = ca.reshape(p[:210], 3, 70)[:, :3] @ ca.sin(x) + m[0] * p[200:203] + ca.sum1(p) * x
    inner = ca.Function("inner", [t, x, m, p], [rates, ca.sumsqr(x) * p[7] + t])
    s = ca.MX.sym("s", 1), ca.MX.sym("x", 3), ca.MX.sym("m", 2), ca.MX.sym("p", 400)
    values = inner(*s)
    by = [ca.jacobian(v, w) for v in values for w in (s[1], s[3], s[2])]
    whole = ca.Function("linearised", list(s), [*values, *by[:3], *(b.T for b in by[3:])])
    function = ca.Function("flow", list(s), values)
    made = products("own", function, whole, explicit=True)
    found, tangent = made["pullback"], made["tangent"]
    rng = np.random.default_rng(0)
    point, v, e = [rng.normal(size=k) for k in (1, 3, 2, 400)], rng.normal(size=3), 0.7
    outputs = [np.array(o).ravel() for o in found(*point, v, e)]
    matrices = [np.array(o) for o in whole(*point)]
    for product, f, g in zip(outputs[2:], matrices[2:5], matrices[5:], strict=True):
        np.testing.assert_allclose(product, f.T @ v + g.ravel() * e, rtol=1e-12, atol=1e-13)
    dx, dm, dp = (rng.normal(size=k) for k in (3, 2, 400))
    df, dg = (np.array(o).ravel() for o in tangent(*point, dx, dm, dp))
    np.testing.assert_allclose(df, matrices[2] @ dx + matrices[3] @ dp + matrices[4] @ dm, rtol=1e-12)
    np.testing.assert_allclose(dg, sum(g.T @ d for g, d in zip(matrices[5:], (dx, dp, dm), strict=True)), rtol=1e-12)
    with pytest.MonkeyPatch.context() as patch:  # the tape belongs to a pullback, which is too long to be rewritten
        patch.setattr("dae_hybrid.codegen.hoisting.MAX_REWRITTEN_NODES", found.n_nodes() - 1)
        assert tangent.n_nodes() < found.n_nodes()
        assert set(hoisted({"flow": function, "pullback": found, "tangent": tangent})) == {"flow", "constants"}
    split = hoisted({"flow": function, "pullback": found})
    c = split["constants"](*point)
    f, g, tape = split["tape"](*point, c)
    np.testing.assert_allclose(np.array(f), matrices[0])
    by_x, by_m, *parts = split["pullback"](*point, c, tape, v, e)
    np.testing.assert_allclose(np.array(by_x).ravel(), outputs[2], rtol=1e-12)
    np.testing.assert_allclose(np.array(by_m).ravel(), outputs[4], rtol=1e-12)
    assert parts


def test_few_entries_are_left_to_matrices() -> None:
    t, x, m, p = (ca.SX.sym(k, n) for k, n in zip("txmp", (1, 3, 0, 4), strict=True))
    values = [ca.sin(x) * p[0], x[0]]
    by = [ca.jacobian(values[0], w) for w in (x, p, m)] + [ca.jacobian(values[1], w).T for w in (x, p, m)]
    flow, whole = ca.Function("flow", [t, x, m, p], values), ca.Function("whole", [t, x, m, p], [*values, *by])
    assert products("own", flow, whole, explicit=True) == {}


def test_outer_products_are_found_and_nothing_else() -> None:
    a, b, c, d = (ca.MX.sym(name, *size) for name, size in zip("abcd", ((9, 1), (8, 1), (9, 2), (2, 8)), strict=True))
    parts = parts_of(ca.vertcat(a, ca.vec(a @ b.T), ca.vec(c @ d), ca.vec(a @ b.T + 1)))
    assert [len(part) for part in parts] == [1, 2, 1, 1]


def test_functions_that_are_called_are_written_out() -> None:
    x = ca.MX.sym("x", 3)
    inner = ca.Function("inner", [x], [ca.sin(x), x**2])
    middle = ca.Function("middle", [x], [sum(inner(2 * x), ca.MX(0))])
    outer = ca.Function("outer", [x], [middle(x) + inner(x)[0]])
    found = inlined(outer)
    assert found is not None
    assert not any(found.instruction_id(k) == ca.OP_CALL for k in range(found.n_instructions()))
    np.testing.assert_allclose(found([1.0, 2.0, 3.0]), outer([1.0, 2.0, 3.0]))


def test_products_in_c_have_the_same_bits() -> None:
    a, x = ca.MX.sym("a", 7, 11), ca.MX.sym("x", 11, 2)
    function = ca.Function("product", [a, x], [a @ x])
    generator = ca.CodeGenerator("m.c", {"casadi_int": "long long int"})
    generator.add(function)
    text = generator.dump()
    assert by_columns(text) != text
    rng, libraries = np.random.default_rng(0), [compile_source(t) for t in (text, by_columns(text))]
    if any(library is None for library in libraries):
        pytest.skip("no compiler")
    import ctypes

    given, found = [rng.normal(size=77), rng.normal(size=22)], []
    for library in libraries:
        out, pointer = np.zeros(14), ctypes.POINTER(ctypes.c_double)
        sizes = [function.sz_arg(), function.sz_res(), function.sz_iw(), function.sz_w()]
        arguments = (pointer * sizes[0])(*(v.ctypes.data_as(pointer) for v in given))
        results = (pointer * sizes[1])(out.ctypes.data_as(pointer))
        library.product(arguments, results, (ctypes.c_longlong * sizes[2])(), (ctypes.c_double * sizes[3])(), 0)
        found.append(out)
    assert found[0].any()
    np.testing.assert_array_equal(*found)


def test_an_unknown_friction_force_is_learnt_and_holds_where_it_was_not_learnt() -> None:
    path = Path(__file__).resolve().parents[2] / "examples" / "learn_friction.py"
    example = runpy.run_path(str(path))
    found = example["main"](iterations=25)
    assert found["weights"] > 1000
    assert min(found["impacts seen"], found["impacts unseen"]) >= 3
    assert found["seen after"] < 0.3 * found["seen before"]
    assert found["unseen after"] < 0.5 * found["unseen before"]
