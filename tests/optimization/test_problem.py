"""Optimisation: known optima by every method, failed points, constraints, changes of the sequence of events."""

from __future__ import annotations

import pickle
import threading
import warnings
from typing import Any

import casadi as ca
import numpy as np
import pytest
from scipy.optimize import minimize

import dae_hybrid as dh
from dae_hybrid.optimization.problem import METHODS

OPTIONS: dict[str, Any] = {"rtol": 1e-9, "atol": 1e-11}
T = 2.0
REACHED = 0.745289900  # restitution at which the fourth bounce of the ball takes place at T, see test_scan.py


def walled() -> dh.HybridSystem:
    """A cost with its minimum at a = 0.7, b = 1; runs fail for a < 1/2."""
    m = dh.HybridModel("walled")
    a, b = m.parameter("a", 3.0), m.parameter("b", 4.0)
    x = m.differential("x")
    m.initial(m.mode("run", ode={x: ca.sqrt(a - 0.5)}), {x: 0.0})
    m.functional("cost", terminal=100 * (a - 0.7) ** 2 / a + 3 * (b - 1) ** 2)
    return m.build()


def ball() -> dh.HybridSystem:
    m = dh.HybridModel("ball")
    g, e = m.parameter("g", 9.81), m.parameter("e", 0.8)
    y, v = m.differential("y"), m.differential("v")
    flight = m.mode("flight", ode={y: v, v: -g})
    m.transition(flight, flight, guard=y, direction="falling", reset={v: -e * v}, name="bounce")
    m.initial(flight, {y: 1.0, v: 0.0})
    m.functional("height", terminal=y)
    m.functional("speed", terminal=v)
    return m.build()


def plane() -> dh.HybridSystem:
    """x(1) = a exp(-1), y(1) = b + 1: minimise x^2 + y^2 with a b = 1, or with vectors."""
    m = dh.HybridModel("plane")
    a, b = m.parameter("a", 2.0), m.parameter("b", 2.0)
    k = m.parameter("k", np.array([1.0, 2.0]))
    x = m.differential("x")
    m.initial(m.mode("run", ode={x: -x}), {x: a})
    m.functional("norm", terminal=(np.e * x) ** 2 + b**2 + ca.sumsqr(k))
    m.functional("product", terminal=np.e * x * b)
    m.functional("pair", terminal=ca.vertcat(x, b))
    return m.build()


WALLED, BALL, PLANE = walled(), ball(), plane()


@pytest.mark.parametrize("method", METHODS)
def test_every_method_passes_points_where_runs_fail(method: str) -> None:
    problem = dh.OptimizationProblem(WALLED, (0, 1), **OPTIONS)
    found = problem.minimize(method)
    assert found.failures, "the first steps were to reach beyond a = 1/2"
    assert found.success
    assert [found.parameters[name] for name in "ab"] == pytest.approx([0.7, 1.0], abs=1e-3)
    first = found.failures[0]
    assert isinstance(first.error, dh.NonFiniteError)
    assert first.parameters[0] < 0.5
    assert np.isnan(first.objective)
    assert first in problem.history


def test_infinity_misleads_scipy() -> None:
    """The reason for the finite value at failed points: L-BFGS-B would report success at a point that is no optimum."""
    run = dh.prepare(WALLED, (0, 1), derivatives="forward", **OPTIONS)

    def cost(x: Any) -> Any:
        try:
            found = run(np.array(x))
        except dh.DaeHybridError:
            return np.inf, np.zeros(2)
        return found.value, found.gradient["cost"]

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = minimize(cost, [3.0, 4.0], jac=True, method="L-BFGS-B")
    assert not found.success or abs(found.x[0] - 0.7) > 0.1, "SciPy now copes: infinity may be used"


def test_a_failure_at_the_start_is_raised() -> None:
    problem = dh.OptimizationProblem(WALLED, (0, 1), parameters={"a": 0.4}, **OPTIONS)
    with pytest.raises(dh.NonFiniteError):
        problem.minimize()
    with pytest.raises(dh.NonFiniteError):
        problem(problem.x0)


@pytest.mark.parametrize("method", ["SLSQP", "trust-constr", "ipopt"])
@pytest.mark.parametrize("derivatives", ["forward", "adjoint"])
def test_an_equation_between_functionals(method: str, derivatives: Any) -> None:
    problem = dh.OptimizationProblem(
        PLANE, (0, 1), "norm", constraints={"product": (1.0, 1.0)}, wrt=["a", "b"], derivatives=derivatives, **OPTIONS
    )
    found = problem.minimize(method)
    assert found.success
    assert found.constraints["product"] == pytest.approx(1.0, abs=1e-6)
    assert [found.parameters[name] for name in "ab"] == pytest.approx([1.0, 1.0], abs=2e-3)
    assert found.change_at_optimum is None
    assert found.sequence_changes == ()


def test_vectors_as_parameters_and_constraints() -> None:
    problem = dh.OptimizationProblem(
        PLANE, (0, 1), "norm", constraints={"pair": ([0.5, -1.0], [np.inf, 3.0])},
        bounds={"k": ([0.5, -np.inf], None), "b": (0.25, None)}, **OPTIONS,
    )  # fmt: skip
    assert problem.labels == ("a", "b", "k[0]", "k[1]")
    found = problem.minimize("SLSQP")
    assert found.constraints["pair"] == pytest.approx([0.5, 0.25], abs=1e-6)
    assert found.parameters["a"] == pytest.approx(0.5 * np.e, abs=1e-6)
    assert found.parameters["k"] == pytest.approx([0.5, 0.0], abs=1e-5)


def test_scales_change_the_variables_only() -> None:
    plain = dh.OptimizationProblem(PLANE, (0, 1), "norm", wrt=["a", "b"], **OPTIONS)
    scaled = dh.OptimizationProblem(PLANE, (0, 1), "norm", wrt=["a", "b"], scale={"a": "log", "b": 10.0}, **OPTIONS)
    assert scaled.x0 == pytest.approx([np.log(2), 0.2])
    (value, gradient), (same, by_x) = plain(plain.x0), scaled(scaled.x0)
    assert same == pytest.approx(value, rel=1e-12)
    assert by_x == pytest.approx(gradient * [2.0, 10.0])
    step = 1e-6
    for i in range(2):
        shift = step * np.eye(2)[i]
        difference = (scaled(scaled.x0 + shift)[0] - scaled(scaled.x0 - shift)[0]) / (2 * step)
        assert by_x[i] == pytest.approx(difference, rel=1e-6)


def test_one_run_serves_objective_and_constraints() -> None:
    problem = dh.OptimizationProblem(PLANE, (0, 1), "norm", constraints={"product": (1, None)}, **OPTIONS)
    x = problem.x0 + 0.1
    problem(x)
    (constraint,) = problem.constraints
    value, jacobian = constraint.fun(x), constraint.jac(x)
    assert len(problem.history) == 1
    assert value == pytest.approx([x[0] * x[1]])
    assert jacobian == pytest.approx(np.array([[x[1], x[0], 0.0, 0.0]]))


@pytest.mark.parametrize("method", ["SLSQP", "L-BFGS-B", "trust-constr", "ipopt"])
def test_the_ball_rises_highest_between_bounces(method: str) -> None:
    problem = dh.OptimizationProblem(
        BALL, (0, T), "height", wrt="e", maximize=True, bounds={"e": (0.75, 0.9)}, **OPTIONS
    )
    found = problem.minimize(method)
    assert found.parameters["e"] == pytest.approx(0.8270, abs=1e-3)
    assert found.value > 0.29
    assert found.value == pytest.approx(
        dh.simulate(BALL, (0, T), parameters={"e": found.parameters["e"]}).functionals["height"]
    )
    assert {str(sequence) for sequence in found.sequences} == {"3 x bounce"}


def test_an_optimum_at_a_kink_is_reported() -> None:
    problem = dh.OptimizationProblem(BALL, (0, T), "height", wrt="e", bounds={"e": (0.72, 0.82)}, **OPTIONS)
    with pytest.warns(dh.DerivativeWarning, match="kink"):
        found = problem.minimize("L-BFGS-B", x0=[0.77])
    nearest = found.change_at_optimum
    assert nearest is not None
    assert nearest.change.kind == "kink"
    assert nearest.parameters[1] == pytest.approx(REACHED, abs=1e-6)
    assert found.parameters["e"] == pytest.approx(REACHED, abs=1e-3)
    assert "kink" in str(found)
    (change,) = found.sequence_changes
    i, k = change.iterates
    assert (found.iterates[i].n_events, found.iterates[k].n_events) == (3, 4)
    assert (str(change.before), str(change.after)) == ("3 x bounce", "4 x bounce")
    assert found.sequences[i] == change.before
    assert found.sequences[k] == change.after
    assert len(found.sequences) == len(found.iterates)


def test_progress_and_reports() -> None:
    problem, seen = dh.OptimizationProblem(PLANE, (0, 1), "norm", wrt="a", **OPTIONS), []
    found = problem.minimize("L-BFGS-B", progress=seen.append)
    assert [own.index for own in seen] == list(range(found.n_evaluations))
    assert "minimize 'norm'" in repr(problem)
    assert "objective" in found._repr_html_()
    assert "L-BFGS-B" in str(found)


def test_an_interrupt_passes_through_ipopt() -> None:
    problem = dh.OptimizationProblem(PLANE, (0, 1), "norm", wrt="a", **OPTIONS)

    def stop(evaluation: Any) -> None:
        if evaluation.index == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        problem.minimize("ipopt", progress=stop)
    assert len(problem.history) == 3


@pytest.mark.parametrize(
    ("given", "error", "match"),
    [
        ({"bounds": {"z": (0, 1)}}, dh.ParameterError, "not a parameter"),
        ({"bounds": {"a": (3, None)}}, dh.ParameterError, "outside its bounds"),
        ({"bounds": {"a": (4, 3)}}, dh.OptionError, "must not exceed"),
        ({"bounds": {"a": (np.nan, 3)}}, dh.OptionError, "must not exceed"),
        ({"bounds": {"a": 3}}, dh.OptionError, "pair"),
        ({"bounds": {"b": (0, 1)}, "wrt": "a"}, dh.ParameterError, "not among wrt"),
        ({"scale": {"a": "cubic"}}, dh.OptionError, "linear"),
        ({"scale": {"a": -1.0}}, dh.OptionError, "positive"),
        ({"scale": {"a": "log"}, "parameters": {"a": -1.0}}, dh.ParameterError, "not positive"),
        ({"constraints": {"norm": (0, 1)}}, dh.ParameterError, "is the objective"),
        ({"constraints": {"none": (0, 1)}}, dh.ParameterError, "Unknown functional"),
        ({"constraints": {"pair": ([0, 1, 2], None)}}, dh.OptionError, "does not fit"),
        ({"constraints": ["norm"]}, dh.OptionError, "mapping"),
        ({"objective": "pair"}, dh.ParameterError, "vector"),
        ({"derivatives": "both"}, dh.OptionError, "derivatives"),
    ],
)
def test_bad_problems_are_refused(given: dict[str, Any], error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        dh.OptimizationProblem(PLANE, (0, 1), **{"objective": "norm", **given})


def test_bad_methods_are_refused() -> None:
    constrained = dh.OptimizationProblem(PLANE, (0, 1), "norm", constraints={"product": (1, None)})
    bounded = dh.OptimizationProblem(PLANE, (0, 1), "norm", bounds={"a": (1, None)})
    for method in ("Nelder-Mead", "Newton-CG", "COBYLA", "newton"):
        with pytest.raises(dh.OptionError, match="does not use gradients"):
            bounded.minimize(method)
    with pytest.raises(dh.OptionError, match="constraints"):
        constrained.minimize("L-BFGS-B")
    with pytest.raises(dh.OptionError, match="bounds"):
        bounded.minimize("BFGS")
    with pytest.raises(dh.OptionError, match="progress"):
        bounded.minimize(progress=3)  # type: ignore[arg-type]
    with pytest.raises(dh.OptionError, match="IPOPT"):
        constrained.minimize("ipopt", nonsense=3)
    with pytest.raises(dh.ParameterError, match="shape"):
        bounded([1.0])
    with pytest.raises(dh.ParameterError, match="outside its bounds"):
        bounded.minimize(x0=[0.0, 1.0, 1.0, 1.0])
    with pytest.raises(dh.ParameterError, match="outside its bounds"):
        bounded.minimize(x0=[np.nan, 1.0, 1.0, 1.0])


def test_the_history_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dae_hybrid.optimization.evaluations.MAX_HISTORY", 10)
    problem = dh.OptimizationProblem(PLANE, (0, 1), "norm", wrt="a", **OPTIONS)
    for a in range(30):
        problem([float(a)])
    assert [own.index for own in problem.history] == list(range(20, 30))


@pytest.mark.parametrize("method", ["BFGS", "SLSQP", "L-BFGS-B", "TNC", "ipopt"])
@pytest.mark.parametrize("start", [1.7, 1.3, 0.4, 0.83])
def test_a_smooth_optimum_at_a_change_has_no_kink(method: str, start: float) -> None:
    m = dh.HybridModel("smooth")
    p, y = m.parameter("p", 1.7), m.differential("y")
    run = m.mode("run", ode={y: 1.0})
    m.transition(run, run, guard=y - 2.0 * p, direction="rising", name="passed")  # at the end if p = 1, the optimum
    m.initial(run, {y: 0.0})
    m.functional("cost", terminal=ca.cosh(3 * (p - 1)) + 0.1 * (p - 1) ** 3)
    found = dh.OptimizationProblem(m.build(), (0, 2), "cost").minimize(method, x0=[start])
    assert found.parameters["p"] == pytest.approx(1.0, abs=1e-3)
    assert found.change_at_optimum is None or found.change_at_optimum.change.kind == "smooth"


def test_ipopt_ends_at_a_kink() -> None:
    m = dh.HybridModel("kinked")
    p, q, y = m.parameter("p", 1.7), m.parameter("q", 0.5), m.differential("y")
    m.initial(m.mode("run", ode={y: 1.0}), {y: 0.0})
    m.functional("cost", terminal=ca.fabs(p - 1 - 0.3 * q) + (q - 2) ** 2 + y)
    problem = dh.OptimizationProblem(m.build(), (0, 2), "cost")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", dh.DerivativeWarning)
        found = problem.minimize("ipopt")
    assert not found.success
    assert "No progress" in found.message
    assert found.n_evaluations < 1000
    assert found.value == pytest.approx(2.0, abs=0.2)
    assert len({own.x.tobytes() for own in found.history}) == found.n_evaluations  # no point is evaluated twice


def test_problems_and_results_with_constraints_pickle() -> None:
    problem = dh.OptimizationProblem(PLANE, (0, 1), "norm", constraints={"product": (1, 1)}, wrt=["a", "b"], **OPTIONS)
    again = pickle.loads(pickle.dumps(problem))
    x = problem.x0
    assert again(x)[0] == problem(x)[0]
    assert again.constraints[0].fun(x) == problem.constraints[0].fun(x)
    for method in ("SLSQP", "trust-constr", "ipopt"):
        found = problem.minimize(method)
        copy = pickle.loads(pickle.dumps(found))
        np.testing.assert_array_equal(copy.x, found.x)
        assert len(copy.history) == len(found.history)
        assert copy.sequences == found.sequences


@pytest.mark.parametrize("method", ["SLSQP", "trust-constr", "ipopt"])
def test_a_constraint_without_limits_is_reported_only(method: str) -> None:
    problem = dh.OptimizationProblem(
        PLANE, (0, 1), "norm", constraints={"product": (None, None)}, wrt=["a", "b"], **OPTIONS
    )
    found = problem.minimize(method)
    assert found.constraints["product"] == pytest.approx(0.0, abs=1e-5)
    assert problem.constraints == ()


def test_arrays_handed_out_do_not_change_later_results() -> None:
    problem = dh.OptimizationProblem(PLANE, (0, 1), "norm", constraints={"product": (1, 1)}, wrt=["a", "b"], **OPTIONS)
    x = problem.x0.copy()
    (value, gradient), (constraint,) = problem(x), problem.constraints
    given = [gradient, constraint.fun(x), constraint.jac(x)]
    kept = [own.copy() for own in given]
    for own in given:
        own[:] = 77.0
    evaluation = problem.history[0]
    for own in (evaluation.x, evaluation.parameters, evaluation.values):
        with pytest.raises(ValueError, match="read-only"):
            own[:] = 0.0
    again = problem(x)
    assert again[0] == value
    for own, before in zip((again[1], constraint.fun(x), constraint.jac(x)), kept, strict=True):
        np.testing.assert_array_equal(own, before)


def test_threads_have_histories_of_their_own() -> None:
    problem = dh.OptimizationProblem(PLANE, (0, 1), "norm", wrt=["a", "b"], **OPTIONS)
    starts = [np.array([float(i), 1.0]) for i in range(1, 5)]
    alone = [problem.minimize("BFGS", x0=start) for start in starts]
    found: dict[int, Any] = {}
    threads = [
        threading.Thread(target=lambda i=i: found.update({i: problem.minimize("BFGS", x0=starts[i])})) for i in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for i, own in enumerate(alone):
        np.testing.assert_array_equal([e.x for e in found[i].history], [e.x for e in own.history])


def test_starts_by_name() -> None:
    problem = dh.OptimizationProblem(PLANE, (0, 1), "norm", scale={"a": "log"}, bounds={"b": (0, 3)}, **OPTIONS)
    found = problem.minimize("L-BFGS-B", x0={"a": 3.0, "k[1]": 5.0}, maxiter=0)
    assert found.history[0].x == pytest.approx([np.log(3.0), 2.0, 1.0, 5.0])
    for given, match in (({"b": 4.0}, "outside its bounds"), ({"z": 1.0}, "z"), ({"a": "u"}, "a")):
        with pytest.raises(dh.ParameterError, match=match):
            problem.minimize("L-BFGS-B", x0=given)
    part = dh.OptimizationProblem(PLANE, (0, 1), "norm", wrt="a", **OPTIONS)
    with pytest.raises(dh.ParameterError, match="not among wrt"):
        part.minimize(x0={"b": 1.0})


def test_arguments_of_wrong_types_are_refused() -> None:
    problem = dh.OptimizationProblem(PLANE, (0, 1), "norm", **OPTIONS)
    for method in (["SLSQP"], 3, None):
        with pytest.raises(dh.OptionError, match="method"):
            problem.minimize(method)  # type: ignore[arg-type]
    for x in ("text", ["u", 1.0, 1.0, 1.0], np.ones(4) * 1j):
        with pytest.raises(dh.ParameterError, match="x"):
            problem.minimize(x0=x)
        with pytest.raises(dh.ParameterError, match="x"):
            problem(x)
    with pytest.raises(dh.OptionError, match="maxiter must be a number, got 'x'"):
        problem.minimize(maxiter="x")


def test_a_linear_objective_does_not_make_scipy_warn() -> None:
    m = dh.HybridModel("linear")
    a, y = m.parameter("a", 1.0), m.differential("y")
    m.initial(m.mode("run", ode={y: a}), {y: 0.0})
    m.functional("end", terminal=y)
    problem = dh.OptimizationProblem(m.build(), (0, 1), bounds={"a": (0, 2)}, **OPTIONS)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert problem.minimize("trust-constr").parameters["a"] == pytest.approx(0.0, abs=1e-3)
