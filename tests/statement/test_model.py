"""Declarations: legal statements, and mistakes refused with a name and a remedy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import casadi as ca
import numpy as np
import pytest

import dae_hybrid as dh
from dae_hybrid.statement.model import HybridModel

NAN, INF = float("nan"), float("inf")


def parts() -> Any:
    """A model with one of everything, open for one more declaration."""
    m = dh.HybridModel("plant")
    m.k, m.y, m.x, m.z = m.parameter("k", 1.0), m.differential("y"), m.differential("x"), m.algebraic("z")
    m.r = m.memory("r", initial=0.0)
    m.run = m.mode("run", ode={m.y: -m.k * m.y, m.x: m.y}, algebraic=[m.z - m.y])
    m.rest = m.mode("rest", ode={m.y: -m.y})
    return m


def raises(error: type[Exception], act: Callable[[], Any], *words: str) -> dh.DaeHybridError:
    """The error, which names every one of `words`."""
    with pytest.raises(error) as caught:
        act()
    text = str(caught.value)
    for word in words:
        assert word in text, f"{word!r} is not in: {text}"
    assert isinstance(caught.value, dh.DaeHybridError)
    return caught.value


def build_fails(declare: Callable[[Any], Any], *words: str, error: type[Exception] = dh.ModelError) -> Any:
    """`declare` on `parts`, then build; either may raise."""

    def act() -> None:
        m = parts()
        declare(m)
        if m.start is None:
            m.initial(m.run, {m.y: 1.0, m.x: 0.0})
        m.build(native=False)

    return raises(error, act, *words)


# -- legal statements -------------------------------------------------------------------------------------------


def test_one_scalar_state_is_a_model() -> None:
    m = dh.HybridModel("one")
    y = m.differential("y")
    m.initial(m.mode("run", ode={y: -y}), {y: 1.0})
    sol = dh.simulate(m.build(native=False), (0, 1), rtol=1e-10, atol=1e-12)
    assert sol["y"][-1] == pytest.approx(np.exp(-1), rel=1e-8)


@pytest.mark.parametrize("native", [True, False], ids=["compiled", "interpreted"])
def test_no_parameter_and_no_functional(native: bool) -> None:
    m = dh.HybridModel("bare")
    x, v = m.differential("x"), m.differential("v")
    m.initial(m.mode("run", ode={x: v, v: -x}), {x: 1.0, v: 0.0})
    system = m.build(native=native)
    sol = dh.simulate(system, (0, 1), rtol=1e-10, atol=1e-12)
    assert sol["x"][-1] == pytest.approx(np.cos(1), rel=1e-8)
    assert dict(sol.functionals) == {}
    fsa = dh.forward_sensitivity(system, (0, 1))
    assert fsa.gradient == {}
    assert fsa["x"].shape == (fsa.t.size, 0)
    raises(dh.ParameterError, lambda: dh.adjoint_gradient(system, (0, 1)), "functional")


def test_no_parameter_with_a_functional() -> None:
    m = dh.HybridModel("bare")
    y, n = m.differential("y"), m.memory("n", initial=0.0)
    run = m.mode("run", ode={y: 1.0})
    m.transition(run, run, guard=y - 0.5, direction="rising", memory={n: n + 1})
    m.initial(run, {y: 0.0})
    m.functional("G", integrand=y, terminal=n)
    system = m.build(native=False)
    assert dh.simulate(system, (0, 1)).functionals["G"] == pytest.approx(1.5)
    assert dh.adjoint_gradient(system, (0, 1)).gradient.shape == (0,)
    assert dh.forward_sensitivity(system, (0, 1)).gradient["G"].shape == (0,)


def test_vectors_of_every_kind(compare_gradients: Any) -> None:
    """x' = A x + b with vector states, parameters, algebraic variables, memory and functionals."""
    m = dh.HybridModel("vectors")
    a = m.parameter("a", [0.3, 1.1, 0.5], unit="1/s")
    b = m.parameter("b", 0.25, size=3)
    x, z = m.differential("x", size=3), m.algebraic("z", size=3, guess=[1.0, 2.0, 3.0])
    held = m.memory("held", of=x)
    run = m.mode("run", ode={x: -a * x + b * held}, algebraic=[z - x * x])
    m.transition(run, run, at=0.5, reset={x: x + 1})
    m.initial(run, {x: [1.0, 2.0, 3.0]})
    m.functional("G", integrand=z, terminal=x)
    system = m.build()
    assert system.parameters.labels() == ("a[0]", "a[1]", "a[2]", "b[0]", "b[1]", "b[2]")
    np.testing.assert_array_equal(system.nominal, [0.3, 1.1, 0.5, 0.25, 0.25, 0.25])
    sol = dh.simulate(system, (0, 1), t_eval=[0.0, 0.5, 1.0])
    assert sol["x"].shape == sol["z"].shape == sol["held"].shape == (3, 3)
    np.testing.assert_allclose(sol["held"][1], sol["x"][1])
    frame = sol.to_dataframe()
    assert list(frame.columns[:5]) == ["t", "mode", "x[0]", "x[1]", "x[2]"]
    compared = compare_gradients(system, (0, 1), "G")
    assert compared.adjoint.gradient.shape == (3, 6)
    assert compared.forward["x"].shape == (compared.forward.t.size, 3, 6)
    one = dh.adjoint_gradient(system, (0, 1), "G", wrt="b")
    assert one.gradient.shape == (3, 3)
    assert one.parameters == ("b[0]", "b[1]", "b[2]")


def test_transition_names_are_unique_by_default() -> None:
    m = parts()
    names = [m.transition(m.run, m.run, guard=m.y - c).name for c in (0.1, 0.2, 0.3)]
    assert names == ["run->run", "run->run#2", "run->run#3"]
    assert m.transition(m.run, None, at=1.0).name == "run->end"


def test_modes_go_by_name_too() -> None:
    m = parts()
    assert m.transition("run", "rest", at=1.0).target is m.rest


def test_units_reach_the_labels() -> None:
    m = dh.HybridModel("q")
    y = m.differential("y", unit="mm")
    m.initial(m.mode("run", ode={y: 1.0}), {y: 0.0})
    assert m.build(native=False).labels["y"] == "y [mm]"


# -- names and sizes --------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["parameter", "differential", "algebraic", "memory"])
def test_a_name_is_taken_once(kind: str) -> None:
    m = parts()
    arguments = {"parameter": {"value": 1.0}, "memory": {"initial": 0.0}}.get(kind, {})
    raises(dh.ModelError, lambda: getattr(m, kind)("y", **arguments), "'y'", "taken")
    raises(dh.ModelError, lambda: getattr(m, kind)("t", **arguments), "'t'", "time")
    raises(dh.ModelError, lambda: getattr(m, kind)("", **arguments), "name")


def test_the_name_of_an_entry_is_taken() -> None:
    """Parameters, initial values and derivatives are named by entry."""
    m = dh.HybridModel("names")
    m.parameter("k", [1.0, 2.0])
    m.differential("y[1]")
    m.differential("[S]")  # no entry of anything
    raises(dh.ModelError, lambda: m.parameter("k[0]", 1.0), "'k[0]'", "entry of a vector")
    raises(dh.ModelError, lambda: m.differential("y", size=2), "'y'", "entry of a vector")
    m.differential("y")


def test_duplicate_modes_transitions_functionals_and_initials() -> None:
    m = parts()
    raises(dh.ModelError, lambda: m.mode("run", ode={m.y: 1.0}), "'run'", "twice")
    m.transition(m.run, m.rest, at=1.0, name="stop")
    raises(dh.ModelError, lambda: m.transition(m.run, m.rest, at=2.0, name="stop"), "'stop'", "twice")
    m.functional("G", terminal=m.y)
    raises(dh.ModelError, lambda: m.functional("G", terminal=m.x), "'G'", "twice")
    m.initial(m.run, {m.y: 1.0, m.x: 1.0})
    raises(dh.ModelError, lambda: m.initial(m.rest, {m.y: 1.0}), "twice")
    raises(dh.ModelError, lambda: m.mode("both", ode={m.y: 1.0, "y": 2.0}), "'y'", "twice")


@pytest.mark.parametrize("size", [0, -1, 1.5, True, "2"], ids=str)
@pytest.mark.parametrize("kind", ["differential", "algebraic", "memory", "parameter"])
def test_sizes_are_positive_integers(kind: str, size: Any) -> None:
    m = dh.HybridModel("q")
    arguments = {"parameter": {"value": 1.0}, "memory": {"initial": 0.0}}.get(kind, {})
    raises(dh.ModelError, lambda: getattr(m, kind)("q", size=size, **arguments), "'q'", "size")


def test_numbers_that_are_none() -> None:
    m = dh.HybridModel("q")
    for value in (NAN, INF, "one", None, [], [[[1.0]]], [1.0, NAN], 1j):
        raises(dh.ModelError, lambda v=value: m.parameter("p", v), "'p'")
    raises(dh.ModelError, lambda: m.parameter("p", [1.0, 2.0], size=3), "'p'", "2", "3")
    raises(dh.ModelError, lambda: m.algebraic("z", guess=NAN), "'z'")
    raises(dh.ModelError, lambda: m.algebraic("z", size=2, guess=[1.0, 2.0, 3.0]), "'z'")
    assert not m.declarations


# -- equations ----------------------------------------------------------------------------------------------


def test_a_state_without_equation() -> None:
    error = build_fails(lambda m: m.differential("lost"), "'lost'", "no equation")
    assert error.variables == ("lost",)


def test_a_state_without_initial_value() -> None:
    error = build_fails(lambda m: m.initial(m.run, {m.y: 1.0}), "x", "initial value", "m.initial")
    assert error.variables == ("x",)
    assert error.mode == "run"


def test_an_initial_value_too_many() -> None:
    build_fails(lambda m: m.initial(m.rest, {m.y: 1.0, m.x: 1.0}), "x", "does not have")
    build_fails(lambda m: m.initial(m.run, {m.y: 1.0, m.z: 1.0}), "'z'", "algebraic")


def test_an_initial_value_that_is_no_function_of_the_parameters() -> None:
    build_fails(lambda m: m.initial(m.run, {m.y: m.x, m.x: 0.0}), "initial value of 'y'", "x", "parameters")
    build_fails(lambda m: m.initial(m.run, {m.y: NAN, m.x: 0.0}), "'y'", "finite")
    build_fails(lambda m: m.initial(m.run, {m.y: [1.0, 2.0], m.x: 0.0}), "'y'", "2 entries")
    build_fails(lambda m: m.initial("nowhere", {m.y: 1.0}), "nowhere", "run")


def test_no_mode_and_no_initial() -> None:
    m = dh.HybridModel("empty")
    raises(dh.ModelError, m.build, "'empty'", "no mode", "m.mode")
    m = parts()
    raises(dh.ModelError, m.build, "'plant'", "initial", "m.initial")


STRAY = ca.MX.sym("stray")
OTHER = HybridModel("other")
OTHER_Y = OTHER.differential("y")  # the same name as a state of `parts`
OTHER_K = OTHER.parameter("k", 1.0)


@pytest.mark.parametrize(("symbol", "name"), [(STRAY, "stray"), (OTHER_Y, "y")], ids=["undeclared", "of another model"])
def test_foreign_symbols_are_named_wherever_they_hide(symbol: ca.MX, name: str) -> None:
    where = {
        "ode of 'y'": lambda m: m.mode("third", ode={m.y: symbol}),
        "algebraic equation": lambda m: m.mode("third", ode={m.y: 1.0}, algebraic=[m.z - symbol]),
        "guard of transition 'go'": lambda m: m.transition(m.run, m.rest, guard=m.y - symbol, name="go"),
        "reset of 'y'": lambda m: m.transition(m.run, m.rest, at=1.0, reset={m.y: symbol}),
        "memory update of 'r'": lambda m: m.transition(m.run, m.rest, at=1.0, memory={m.r: symbol}),
        "integrand of functional 'G'": lambda m: m.functional("G", integrand=symbol),
        "terminal value of functional 'G'": lambda m: m.functional("G", terminal=symbol),
    }
    for place, declare in where.items():
        build_fails(declare, place, f"'{name}'", "'plant'", "Declare")


def test_foreign_symbols_where_only_parameters_may_stand() -> None:
    for symbol, name in ((STRAY, "stray"), (OTHER_K, "k")):
        for key in ("at", "every"):
            declare = lambda m, key=key, symbol=symbol: m.transition(m.run, m.rest, **{key: symbol}, name="go")
            build_fails(declare, f"{key} of transition 'go'", name)
        build_fails(lambda m, symbol=symbol: m.initial(m.run, {m.y: symbol, m.x: 0.0}), "initial value of 'y'", name)


def test_symbols_of_another_model_as_keys() -> None:
    build_fails(lambda m: m.mode("third", ode={OTHER_Y: 1.0}), "y", "not declared", "'plant'")
    build_fails(lambda m: m.initial(m.run, {OTHER_Y: 1.0, m.x: 0.0}), "not declared")
    build_fails(lambda m: m.transition(m.run, m.rest, at=1.0, reset={"w": 1.0}), "w", "not declared")
    build_fails(lambda m: m.memory("s", of=OTHER_Y), "not declared")


def test_a_variable_the_mode_does_not_have() -> None:
    build_fails(lambda m: m.mode("third", ode={m.y: m.x}), "'x'", "no equation in this mode", "ode=")
    build_fails(lambda m: m.transition(m.rest, m.run, guard=m.z, reset={m.x: 0.0}), "'z'", "algebraic=")
    build_fails(lambda m: m.functional("G", terminal=m.x), "'x'", "rest")


def test_values_of_the_wrong_kind_or_size() -> None:
    build_fails(lambda m: m.mode("third", ode={m.z: 1.0}), "'z'", "algebraic", "differential")
    build_fails(lambda m: m.mode("third", ode={m.y: ca.vertcat(m.y, m.y)}), "'y'", "2 entries")
    build_fails(lambda m: m.mode("third", ode={m.y: "fast"}), "'y'", "fast")
    build_fails(lambda m: m.mode("third", ode={m.y: INF}), "'y'", "finite")
    build_fails(lambda m: m.transition(m.run, m.rest, at=1.0, reset={m.k: 1.0}), "'k'", "parameter")
    build_fails(lambda m: m.transition(m.run, m.rest, at=1.0, reset={m.z: 1.0}), "'z'", "algebraic")
    build_fails(lambda m: m.transition(m.run, m.rest, at=1.0, memory={m.y: 1.0}), "'y'", "memory")
    build_fails(lambda m: m.transition(m.run, m.rest, guard=ca.vertcat(m.y, m.x)), "guard", "2 entries")


def test_modes_of_another_model() -> None:
    foreign = OTHER.modes.get("run") or OTHER.mode("run", ode={OTHER_Y: 1.0})
    m = parts()
    raises(dh.ModelError, lambda: m.transition(foreign, m.run, at=1.0), "not a mode of model 'plant'", "rest")
    raises(dh.ModelError, lambda: m.transition(m.run, "nowhere", at=1.0), "nowhere", "Modes: run, rest")
    raises(dh.ModelError, lambda: m.transition(m.run, 7, at=1.0), "7")


# -- transitions ------------------------------------------------------------------------------------------------


def test_exactly_one_trigger() -> None:
    m = parts()
    raises(dh.ModelError, lambda: m.transition(m.run, m.rest, name="go"), "'go'", "exactly one", "none")
    raises(dh.ModelError, lambda: m.transition(m.run, m.rest, guard=m.y, at=1.0), "guard, at")
    raises(dh.ModelError, lambda: m.transition(m.run, m.rest, at=1.0, every=1.0), "at, every")
    raises(dh.ModelError, lambda: m.transition(m.run, m.rest, guard=m.y, direction="up"), "rising", "'up'")
    raises(dh.ModelError, lambda: m.transition(m.run, m.rest, guard=m.y, on_entry="go"), "wait", "'go'")


@pytest.mark.parametrize("guard", [lambda m: 1.0, lambda m: m.k - 2, lambda m: 0 * m.y], ids=range(3))
def test_a_guard_that_depends_on_nothing(guard: Callable[[Any], Any]) -> None:
    error = build_fails(lambda m: m.transition(m.run, m.rest, guard=guard(m), name="go"), "guard", "'go'", "at=")
    assert error.transition == "go"


def test_a_reset_of_what_the_target_does_not_have() -> None:
    error = build_fails(lambda m: m.transition(m.run, m.rest, at=1.0, reset={m.x: 0.0}), "'x'", "'rest'", "y")
    assert error.transition == "run->rest"
    assert error.variables == ("x",)


def test_a_target_state_without_a_value() -> None:
    error = build_fails(lambda m: m.transition(m.rest, m.run, at=1.0), "'x'", "reset=")
    assert error.variables == ("x",)


def test_memory_needs_a_beginning_and_one_update() -> None:
    m = parts()
    raises(dh.ModelError, lambda: m.memory("s"), "'s'", "initial")
    raises(dh.ModelError, lambda: m.memory("s", of=m.k, initial=0.0), "'s'", "parameter")
    raises(dh.ModelError, lambda: m.memory("s", initial=[1.0, 2.0, 3.0], size=2), "'s'", "3 entries")
    s = m.memory("s", of=m.y)
    raises(dh.ModelError, lambda: m.transition(m.run, m.run, at=1.0, memory={s: 1.0}), "'s'", "of=")
    build_fails(lambda m: m.memory("s", initial=m.memory("r2", initial=0.0)), "initial value of a memory uses a memory")


def test_memory_of_a_state_the_initial_mode_lacks() -> None:
    def declare(m: Any) -> None:
        m.memory("s", of=m.x)
        m.initial(m.rest, {m.y: 1.0})

    build_fails(declare, "'s'", "initial value")


def test_der_and_post_need_the_right_kind() -> None:
    m = parts()
    raises(dh.ModelError, lambda: m.der(m.z), "'z'", "algebraic")
    raises(dh.ModelError, lambda: m.post(m.k), "'k'", "parameter")
    raises(dh.ModelError, lambda: m.der(STRAY), "stray", "not declared")
    build_fails(lambda m: m.transition(m.run, m.rest, guard=m.post(m.y)), "post(y)")
    build_fails(lambda m: m.mode("third", ode={m.y: m.post(m.y)}), "post(y)")


def test_derivatives_must_not_define_themselves() -> None:
    build_fails(lambda m: m.mode("third", ode={m.y: m.der(m.y) + 1}), "der(y)")


# -- functionals --------------------------------------------------------------------------------------------------


def test_functional_sizes() -> None:
    m = parts()
    raises(dh.ModelError, lambda: m.functional("G"), "'G'", "integrand", "terminal")
    two = ca.vertcat(m.y, m.x)
    raises(dh.ModelError, lambda: m.functional("G", integrand=two, terminal=m.y), "'G'", "[1, 2]")
    raises(dh.ModelError, lambda: m.functional("G", terminal=NAN), "'G'", "finite")


# -- structure of the algebraic equations -----------------------------------------------------------------------


def test_count_of_algebraic_equations() -> None:
    more = build_fails(
        lambda m: m.mode("third", ode={m.y: 1.0}, algebraic=[m.z - m.y, m.z + m.y]),
        "2 equations", "1 algebraic variables", "z",
        error=dh.FormulationError,
    )  # fmt: skip
    assert more.mode == "third"
    build_fails(
        lambda m: m.mode("third", ode={m.y: m.z}), "0 equations", "1 algebraic variables and derivatives (z)",
        error=dh.FormulationError,
    )  # fmt: skip
    build_fails(
        lambda m: m.mode("third", ode={m.y: 1.0}, algebraic=[m.y]),
        "1 equation (the time derivative of algebraic equation 0)",
        error=dh.FormulationError,
    )  # fmt: skip


def test_an_algebraic_variable_without_equation() -> None:
    error = build_fails(lambda m: m.algebraic("w"), "'w'", "no equation", "algebraic=")
    assert error.variables == ("w",)


def test_index_three_is_refused_with_advice() -> None:
    error = build_fails(
        lambda m: m.mode("third", ode={m.y: m.x, m.x: m.z}, algebraic=[m.y - 1]),
        "time derivative of algebraic equation 0", "index is 3", "velocity",
        error=dh.FormulationError,
    )  # fmt: skip
    assert error.mode == "third"
    assert error.variables == ("z",)


def test_structural_singularity_behind_full_rows() -> None:
    """Two equations that both contain only the first of two variables."""
    m = dh.HybridModel("q")
    y, a, b = m.differential("y"), m.algebraic("a"), m.algebraic("b")
    m.initial(m.mode("run", ode={y: b}, algebraic=[a - y, a * a - y]), {y: 1.0})
    error = raises(dh.FormulationError, lambda: m.build(native=False), "cannot determine b", "algebraic equation 1")
    assert error.variables == ("b",)


def test_numerically_singular_at_the_start() -> None:
    m = dh.HybridModel("q")
    y, z = m.differential("y"), m.algebraic("z", size=2)
    m.initial(m.mode("run", ode={y: z[0]}, algebraic=[z[0] + z[1] - y, 2 * z[0] + 2 * z[1] - y]), {y: 1.0})
    system = m.build(native=False)
    error = raises(dh.ConsistencyError, lambda: dh.simulate(system, (0, 1)), "z", "singular", "'run'", "guess")
    assert error.time == 0.0


@pytest.mark.parametrize("analysis", [dh.simulate, dh.forward_sensitivity])
def test_numerically_singular_although_solvable(analysis: Any) -> None:
    """Rank one and consistent: any point of a line solves it, so nothing must be integrated quietly."""
    m = dh.HybridModel("q")
    y, z = m.differential("y"), m.algebraic("z", size=2)
    m.initial(m.mode("run", ode={y: z[0]}, algebraic=[z[0] + z[1] - y, 2 * z[0] + 2 * z[1] - 2 * y]), {y: 0.0})
    system = m.build(native=False)
    with pytest.raises((dh.ConsistencyError, dh.IntegrationError)):
        analysis(system, (0, 1))


def test_no_consistent_start_names_the_guess() -> None:
    m = dh.HybridModel("q")
    y, z = m.differential("y"), m.algebraic("z", guess=1.0)
    m.initial(m.mode("run", ode={y: z}, algebraic=[z * z + 1 + y]), {y: 0.0})
    raises(dh.ConsistencyError, lambda: dh.simulate(m.build(native=False), (0, 1)), "z", "guess", "'run'")


def test_the_guess_chooses_the_branch() -> None:
    for guess, root in ((1.0, 2.0), (-1.0, -2.0)):
        m = dh.HybridModel("q")
        y, z = m.differential("y"), m.algebraic("z", guess=guess)
        m.initial(m.mode("run", ode={y: 0.0}, algebraic=[z * z - y]), {y: 4.0})
        assert dh.simulate(m.build(native=False), (0, 1))["z"][0] == pytest.approx(root)


# -- arguments of a call ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def plant(built: Any, models: Any) -> dh.HybridSystem:
    return built(models.circuit, native=False)


ANALYSES: list[Callable[..., Any]] = [
    dh.simulate,
    dh.forward_sensitivity,
    lambda *a, **k: dh.adjoint_gradient(*a, functional="work", **k),
    lambda *a, **k: dh.check_gradient(*a, functional="work", **k),
]
everywhere = pytest.mark.parametrize("analysis", ANALYSES, ids=["simulate", "forward", "adjoint", "check"])


@everywhere
@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"kk": 1.0}, ("'kk'", "k, c, q")),
        ({"k": [1.0, 2.0]}, ("'k'", "1 value", "(2,)")),
        ({"k": NAN}, ("'k'", "finite")),
        ({"k": INF}, ("'k'", "finite")),
        ({"k": "one"}, ("'k'", "one")),
        ({"k": None}, ("'k'",)),
        ([1.0, 2.0], ("3 value", "(2,)")),
        ([1.0, 2.0, NAN], ("finite",)),
        ([], ("3 value",)),
        (1.0, ("3 value",)),
    ],
    ids=["unknown", "length", "nan", "inf", "text", "none", "missing", "nan in array", "empty", "scalar"],
)
def test_parameters(analysis: Any, plant: dh.HybridSystem, given: Any, words: tuple[str, ...]) -> None:
    raises(dh.ParameterError, lambda: analysis(plant, (0, 1), parameters=given), *words)


@everywhere
@pytest.mark.parametrize(
    ("span", "words"),
    [
        ((1, 0), ("t_span", "reversed")),
        ((1, 1), ("t_span", "empty")),
        ((0, NAN), ("t_span", "finite")),
        ((-INF, 0), ("t_span", "finite")),
        ((0,), ("t_span", "two numbers")),
        ((0, 1, 2), ("t_span", "two numbers")),
        (5.0, ("t_span", "two numbers")),
        (("a", "b"), ("t_span", "two numbers")),
        (None, ("t_span", "two numbers")),
    ],
    ids=str,
)
def test_time_spans(analysis: Any, plant: dh.HybridSystem, span: Any, words: tuple[str, ...]) -> None:
    raises(dh.OptionError, lambda: analysis(plant, span), *words)


@everywhere
@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"rtol": 0.0}, ("rtol", "positive")),
        ({"rtol": -1e-8}, ("rtol", "positive")),
        ({"rtol": NAN}, ("rtol",)),
        ({"rtol": "small"}, ("rtol", "small")),
        ({"atol": 0.0}, ("atol", "positive")),
        ({"atol": INF}, ("atol",)),
        ({"atol": {"y": -1.0}}, ("atol['y']",)),
        ({"atol": {"w": 1.0}}, ("'w'", "y")),
        ({"method": "rk4"}, ("method", "'rk4'", "bdf")),
        ({"sensitivity_method": "both"}, ("sensitivity_method", "staggered")),
        ({"max_step": 0.0}, ("max_step",)),
        ({"first_step": -1.0}, ("first_step",)),
        ({"max_steps": 0}, ("max_steps",)),
        ({"max_steps": 1.5}, ("max_steps",)),
        ({"max_order": 6}, ("max_order", "5")),
        ({"max_events": 0}, ("max_events",)),
        ({"max_transitions_per_instant": 0}, ("max_transitions_per_instant",)),
        ({"tolerance": 1e-3}, ("'tolerance'", "rtol")),
        ({"adapter": "matlab"}, ("'matlab'", "sundials")),
    ],
    ids=str,
)
def test_options(analysis: Any, plant: dh.HybridSystem, options: Any, words: tuple[str, ...]) -> None:
    raises(dh.OptionError, lambda: analysis(plant, (0, 1), **options), *words)


@pytest.mark.parametrize("analysis", ANALYSES[:3], ids=["simulate", "forward", "adjoint"])
@pytest.mark.parametrize(
    ("times", "words"),
    [
        ([0.0, 2.0], ("within",)),
        ([-1.0, 0.5], ("within",)),
        ([0.5, 0.2], ("increase",)),
        ([0.5, 0.5], ("increase",)),
        ([0.5, NAN], ("finite",)),
        ([], ("non-empty",)),
        ([[0.1, 0.2]], ("one-dimensional",)),
        ("soon", ("t_eval",)),
    ],
    ids=str,
)
def test_output_times(analysis: Any, plant: dh.HybridSystem, times: Any, words: tuple[str, ...]) -> None:
    raises(dh.OptionError, lambda: analysis(plant, (0, 1), t_eval=times), *words)


def test_wrt_and_functional(plant: dh.HybridSystem) -> None:
    for analysis in (dh.forward_sensitivity, ANALYSES[2], ANALYSES[3]):
        raises(dh.ParameterError, lambda a=analysis: a(plant, (0, 1), wrt=["k", "kk"]), "'kk'", "k, c, q")
        raises(dh.ParameterError, lambda a=analysis: a(plant, (0, 1), wrt=[]), "wrt", "empty")
        raises(dh.ParameterError, lambda a=analysis: a(plant, (0, 1), wrt=["k", "k"]), "'k'", "twice")
    for analysis in (dh.adjoint_gradient, dh.check_gradient):
        raises(dh.ParameterError, lambda a=analysis: a(plant, (0, 1)), "functional", "work, both")
        raises(dh.ParameterError, lambda a=analysis: a(plant, (0, 1), "cost"), "'cost'", "work, both")
    error = lambda: dh.adjoint_gradient(plant, (0, 1), "work", algorithm="fast")
    raises(dh.OptionError, error, "algorithm", "general", "'fast'")


@everywhere
def test_a_model_is_not_a_system(analysis: Any, models: Any) -> None:
    raises(dh.OptionError, lambda: analysis(models.decay(), (0, 1)), "HybridModel", "build()")


def test_adams_is_refused_for_algebraic_variables(plant: dh.HybridSystem) -> None:
    for analysis in ANALYSES[:3]:
        raises(dh.UnsupportedError, lambda a=analysis: a(plant, (0, 1), method="adams"), "adams", "bdf", "'second'")


def test_options_are_frozen() -> None:
    options = dh.Options()
    with pytest.raises(AttributeError):
        options.rtol = 1.0  # type: ignore[misc]
    assert dh.Options(max_order=12, method="adams").max_order == 12


def test_lists_of_expressions_are_vectors() -> None:
    m = dh.HybridModel("lists")
    a, b = m.parameter("a", 2.0), m.parameter("b", 3.0)
    y = m.differential("y", size=2)
    m.initial(m.mode("run", ode={y: [-a * y[0], 0.0]}), {y: [a, b]})
    m.functional("ends", terminal=[y[0], y[1]])
    sol = dh.simulate(m.build(native=False), (0, 1), rtol=1e-10)
    np.testing.assert_allclose(sol.functionals["ends"], [2 * np.exp(-2), 3], rtol=1e-8)


def test_a_schedule_of_another_model() -> None:
    k = dh.HybridModel("other").parameter("k", 1.0)
    build_fails(lambda m: m.transition("run", "run", at=k), "k", "does not declare")


def test_equations_that_are_no_mapping() -> None:
    m = dh.HybridModel("q")
    raises(dh.ModelError, lambda: m.mode("a", ode=[1.0]), "ode", "mapping")  # type: ignore[arg-type]
