"""Optimisation problems: functionals of a hybrid system for the optimisers of SciPy, and IPOPT."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, Unpack

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import Bounds, minimize

from dae_hybrid.conditions.sequences import EventSequence
from dae_hybrid.errors import DerivativeWarning, OptionError, ParameterError
from dae_hybrid.interface.api import RunOptions
from dae_hybrid.interface.batch import ADJOINT_PARAMETER_RATIO
from dae_hybrid.interface.prepared import prepare
from dae_hybrid.interface.prepared_case import Analysis, trajectory_of
from dae_hybrid.interface.runs import Parameters
from dae_hybrid.interface.starts import started
from dae_hybrid.numeric_input import shown
from dae_hybrid.numerics.arrays import Array
from dae_hybrid.optimization.evaluations import Evaluation, Evaluator
from dae_hybrid.optimization.functions import IpoptTarget, Layout, Target
from dae_hybrid.optimization.ipopt import Functions, ipopt
from dae_hybrid.optimization.nearest import change_beside
from dae_hybrid.optimization.one_sided import OneSided
from dae_hybrid.optimization.orders import Order
from dae_hybrid.optimization.result import ChangeAtOptimum, OptimizationResult
from dae_hybrid.optimization.scaling import Bound, Scale, bound_pair
from dae_hybrid.optimization.variables import Variables
from dae_hybrid.options import Options
from dae_hybrid.progress import ProgressReport, check_report
from dae_hybrid.system.system import HybridSystem


class Method(NamedTuple):
    """Whether a method supports bounds and constraints."""

    bounds: bool
    constraints: bool


#: supported methods: those that use gradients
METHODS = {
    "SLSQP": Method(bounds=True, constraints=True),
    "trust-constr": Method(bounds=True, constraints=True),
    "L-BFGS-B": Method(bounds=True, constraints=False),
    "TNC": Method(bounds=True, constraints=False),
    "BFGS": Method(bounds=False, constraints=False),
    "CG": Method(bounds=False, constraints=False),
    "ipopt": Method(bounds=True, constraints=True),
}
#: default of IPOPT's `tol` as a share of sqrt(rtol), and its least value: at a gradient of about sqrt(rtol), values
#: differ by no more than the error of a run, and a line search finds no descent
IPOPT_SHARE, MIN_IPOPT_TOL = 0.1, 1e-8
#: default of its `max_iter`
IPOPT_ITERATIONS = 200
#: options of SciPy's methods that are texts
TEXTS = ("factorization_method",)
#: limit on the sequences of events kept by name
MAX_SEQUENCES = 100


class OptimizationProblem:
    """A functional as the objective of an optimisation over parameters, with functionals as constraints.

    One run with exact gradients serves the objective and all constraints at a point.

    Parameters
    ----------
    system, t_span, adapter, **options
        As in `prepare`.
    objective : str, optional
        Scalar functional to minimise; optional if the model has only one.
    constraints : mapping of str to (lower, upper), optional
        Functionals and their bounds: numbers, arrays by component for a vector, None for no bound; equal numbers for an
        equation.
    wrt : str or sequence of str, optional
        Parameters and initial values (``"x(0)"``) to optimise; default all parameters.
    bounds : mapping of str to (lower, upper), optional
        Bounds of parameters, or of their entries (``"K[0,1]"``), in the same form.
    order : str, sequence of str, or sequence of these, optional
        Parameters of which none may exceed the next, such as switching times: ``["t1", "t2", "t3"]`` means
        t1 <= t2 <= t3. A vector stands for its entries (``"times"``: times[0] <= times[1] <= ...). Several orders are a
        sequence of sequences. The methods receive them as linear constraints, and no run is out of order.
    parameters : mapping, labelled array or array, optional
        Start of the optimised parameters and values of the others, as in `simulate`; default nominal.
    scale : {"linear", "log", "logit"}, float, or mapping of str to these, optional
        ``"log"``: the optimiser sees the logarithm of the parameter; ``"logit"``: that of its distances from the two
        bounds. A number: it sees multiples of this number. Default ``"linear"``: the parameter itself.
    derivatives : {"auto", "forward", "adjoint"}
        Analysis. ``"auto"`` selects the adjoint if there are more than four parameters per component of the
        functionals.
    maximize : bool
        Maximise the objective.

    Attributes
    ----------
    x0 : ndarray, shape (n,)
        The start, in terms of the optimisation variables.
    bounds : scipy.optimize.Bounds
        Bounds of the optimisation variables.
    constraints : tuple of scipy.optimize.NonlinearConstraint and LinearConstraint
        One for each functional with a finite limit, with exact Jacobians; the last one, linear, for `order`.
    limits : dict of str to (ndarray, ndarray)
        Lower and upper limits of the constraints, by component.
    labels : tuple of str
        Labels of the parameters, n of them.
    history : tuple of Evaluation
        Evaluations of the `minimize` that was started last; before the first, of calls of the problem and its
        constraints. The last 10,000, or as many as fit into 100 MB.

    Notes
    -----
    ``problem(x)`` returns value and gradient of the function to minimise, as `scipy.optimize.minimize` takes them with
    ``jac=True``; the sign is changed if the objective is maximised.

    A point where a run fails or a derivative is refused does not end an optimisation: the objective is then 1000 times
    one plus its largest magnitude so far, its gradient zero, and the constraints are those of the last valid point.
    The methods of SciPy then shorten their step; CG may give up next to such points, and reports no success. (With
    infinity L-BFGS-B reports convergence at a point that is no optimum, TNC gives up, and NaN ends L-BFGS-B, BFGS, CG
    and TNC.) IPOPT sees NaN, where it shortens its step.
    The reason is kept in `history`. Methods that do not use gradients, or that difference them, are refused.

    Where derivatives are one-sided, as where an event that moves is at the very time of a measurement, one side within
    the bounds and orders is taken, that of a point next to it: see `Evaluation.one_sided`.

    Examples
    --------
    >>> import dae_hybrid as dh
    >>> from dae_hybrid.problems import em_hysteresis
    >>> problem = dh.OptimizationProblem(
    ...     em_hysteresis.system(), (0, 10), "G", wrt=["kb"], bounds={"kb": (5.0, 20.0)}, rtol=1e-8, atol=1e-12
    ... )
    >>> found = problem.minimize("L-BFGS-B")
    >>> found.success, found.parameters["kb"]
    (True, 5.0)

    Raises
    ------
    ParameterError
        A name is unknown or not among `wrt`, an order has fewer than two parameters, or the start is out of order or
        outside the bounds.
    OptionError
        Another argument is invalid, or the scales of an order differ in kind.
    """

    def __init__(
        self,
        system: HybridSystem,
        t_span: Sequence[float],
        objective: str | None = None,
        *,
        constraints: Mapping[str, Bound] | None = None,
        wrt: str | Sequence[str] | None = None,
        bounds: Mapping[str, Bound] | None = None,
        order: Order | None = None,
        parameters: Parameters = None,
        scale: Scale | Mapping[str, Scale] | None = None,
        derivatives: Literal["auto", "forward", "adjoint"] = "auto",
        maximize: bool = False,
        adapter: str = "sundials",
        **options: Unpack[RunOptions],
    ) -> None:
        system = started(system, wrt=wrt)
        self.system, self.t_span, self.objective = system, t_span, system.functional_name(objective)
        self._sign = -1.0 if maximize else 1.0
        self._parts, self._limits = _constraints(system, self.objective, constraints)
        names = (self.objective, *self._parts)
        self._variables = variables = Variables(system, wrt, system.parameter_vector(parameters), bounds, scale, order)
        if not variables.labels:
            raise ParameterError(f"Model '{system.name}' has no parameters to optimise.")
        self.labels, self.x0 = variables.labels, variables.x0
        self.bounds = Bounds(variables.lower, variables.upper)
        n_components = 1 + self._limits[0].size
        self.derivatives = _analysis(derivatives, len(self.labels), n_components)
        self._call: dict[str, Any] = {"adapter": adapter, **options}
        self._options = Options.of(options)
        self._prepared = prepare(system, t_span, functional=names, derivatives=self.derivatives, wrt=wrt, **self._call)
        self._names = names
        self._sequences: dict[int, EventSequence] = {}
        self.limits = {
            name: (self._limits[0][part.start - 1 : part.stop - 1], self._limits[1][part.start - 1 : part.stop - 1])
            for name, part in self._parts.items()
        }
        self._own = self._latest = self._target()
        self.constraints = self._own.constraints()

    # -- functions of x -----------------------------------------------------------------------------------------

    def __call__(self, x: ArrayLike) -> tuple[float, Array]:
        """Value and gradient, shape (n,), of the function to minimise.

        Raises
        ------
        DaeHybridError
            The run fails and there is no earlier valid point.
        """
        return self._own.objective(x)

    def parameters(self, x: ArrayLike) -> dict[str, Any]:
        """Values of the optimised parameters at x, by name."""
        return self._variables.named(self._variables.parameters(self._variables.given(x)))

    @property
    def history(self) -> tuple[Evaluation, ...]:
        """Evaluations of the `minimize` that was started last; before the first, of calls of the problem."""
        return tuple(self._latest.evaluator.history)

    def _target(self) -> Target:
        """The functions of x, with a history of their own."""
        return Target(
            Evaluator(self._prepared, self._names, self._variables, self._variables.sides(self._options.rtol)),
            self._variables,
            Layout(self._sign, self._parts, self.limits),
        )  # fmt: skip

    # -- optimisation -------------------------------------------------------------------------------------------

    def minimize(
        self,
        method: str = "SLSQP",
        *,
        x0: ArrayLike | Mapping[str, ArrayLike] | None = None,
        progress: bool | Callable[[Evaluation], object] = False,
        **options: Any,
    ) -> OptimizationResult:
        """Minimise the objective, or maximise it if the problem says so.

        Parameters
        ----------
        method : {"SLSQP", "trust-constr", "L-BFGS-B", "TNC", "BFGS", "CG", "ipopt"}
            A method of `scipy.optimize.minimize`, or IPOPT, which CasADi contains, with a limited-memory Hessian. The
            first two and IPOPT support constraints; BFGS and CG do not support bounds. IPOPT is for smooth problems: at
            a kink its line search does not end, and it is stopped after 200 evaluations in which no iterate moves.
        x0 : array, shape (n,), or mapping of str to float or array, optional
            Start in terms of the optimisation variables, or values of parameters by name, with the default for the
            others. Default `OptimizationProblem.x0`.
        progress : bool or callable
            Called with each `Evaluation`; True shows a line on a terminal.
        **options
            Options of the method, such as ``maxiter`` and ``ftol``, or of IPOPT, such as ``max_iter`` and ``tol``,
            whose defaults are 200 and sqrt(rtol) / 10, at least 1e-8.

        Returns
        -------
        OptimizationResult

        Raises
        ------
        DaeHybridError
            The run at the start fails or its derivatives are refused.
        OptionError
            The method is unknown or unsuitable.
        OneSidedError
            The optimiser ends at a point at which derivatives are refused as one-sided, and neither bounds nor orders
            exclude the other side. `OneSidedError.result` is the result.

        Warns
        -----
        ConditionWarning
            The warnings of the run at the start. Those of the others are in `Evaluation.warnings`: at an optimum the
            gradient vanishes, and none of its digits can be had.
        DerivativeWarning
            The final point lies next to a change of the sequence of events at which the objective or a constraint has a
            kink or a jump, or derivatives there are one-sided within the accuracy of the run: conditions on the
            gradient mean nothing there.
        """
        self._check(method)
        start = self.x0 if x0 is None else self._variables.start(x0)
        check_report("progress", progress)
        target = self._latest = self._target()
        with ProgressReport(f"optimize {self.system.name}", progress, Evaluation.in_words) as tell:
            target.evaluator.on_evaluation = tell
            first = target.evaluator.accept(start)
            for own in first.warnings:
                warnings.warn(own.message, own.category, stacklevel=2)
            x, success, message, iterations, raw = (self._by_ipopt if method == "ipopt" else self._by_scipy)(
                target, method, start, options
            )
            target.evaluator.on_evaluation = None
        return self._result(target, x, success, message, method, iterations, raw)

    def _check(self, method: str) -> None:
        if not isinstance(method, str) or method not in METHODS:
            raise OptionError(
                f"method {shown(method)} is not supported: it is unknown, or does not use gradients.",
                remedy=f"Methods: {', '.join(METHODS)}.",
            )
        if self.constraints and not METHODS[method].constraints:
            legal = ", ".join(name for name, own in METHODS.items() if own.constraints)
            raise OptionError(f"method {method!r} does not support constraints.", remedy=f"Methods that do: {legal}.")
        bounded = np.isfinite(self.bounds.lb).any() or np.isfinite(self.bounds.ub).any()
        if bounded and not METHODS[method].bounds:
            legal = ", ".join(name for name, own in METHODS.items() if own.bounds)
            raise OptionError(f"method {method!r} does not support bounds.", remedy=f"Methods that do: {legal}.")

    def _by_scipy(
        self, target: Target, method: str, start: Array, options: Mapping[str, Any]
    ) -> tuple[Array, bool, str, int, Any]:
        def note(x: Array, *_: object) -> None:
            target.evaluator.accept(np.array(x, dtype=float))

        for name, value in options.items():
            if not (value is None or name in TEXTS or np.asarray(value).dtype.kind in "biuf"):
                raise OptionError(f"{name} must be a number, got {shown(value)}.")
        lower, upper = self.bounds.lb, self.bounds.ub
        inside = bool(np.all((lower < start) & (start < upper)))  # trust-constr can then stay there
        more: dict[str, Any] = {"bounds": Bounds(lower, upper, inside)} if METHODS[method].bounds else {}
        if self.constraints:
            more["constraints"] = target.constraints(start if method == "trust-constr" else None)
        given = {name: value for name, value in options.items() if name != "tol"}
        with warnings.catch_warnings():
            # of trust-constr: it asks whether the function is linear
            warnings.filterwarnings("ignore", message="delta_grad == 0.0", category=UserWarning)
            raw = minimize(
                target.objective, start, method=method, jac=True, callback=note, tol=options.get("tol"), options=given,
                **more,
            )  # fmt: skip
        return np.array(raw.x, dtype=float), bool(raw.success), str(raw.message), int(raw.nit), raw

    def _by_ipopt(
        self, target: Target, _: str, start: Array, options: Mapping[str, Any]
    ) -> tuple[Array, bool, str, int, Any]:
        own = IpoptTarget(target, start, self._limits[0].size)
        bounds = self._variables.lower, self._variables.upper
        tol = max(MIN_IPOPT_TOL, IPOPT_SHARE * self._options.rtol**0.5)
        given = {"tol": tol, "max_iter": IPOPT_ITERATIONS} | dict(options)
        found = ipopt(
            Functions(own.values, own.derivatives), start, bounds, self._limits, given, self._variables.differences
        )
        stats = found.stats
        return found.x, bool(stats["success"]), str(stats["return_status"]), int(stats["iter_count"]), stats

    def _result(
        self, target: Target, x: Array, success: bool, message: str, method: str, iterations: int, raw: Any
    ) -> OptimizationResult:
        point = target.evaluator(x)
        final = point.evaluation
        final.is_iterate = True
        beside, sided = None, final.one_sided
        if sided is not None and not target.evaluator.differs(x):
            sided = None
        is_refused = sided is not None and bool(sided.moved)
        if final.error is not None:
            success, message = False, f"The run at the final point failed: {final.error.message}"
        elif is_refused:
            success, message = False, "Derivatives are one-sided at the final point."
        else:
            beside = self._change_beside(target, final, sided)
        values = {name: final.values[part] for name, part in self._parts.items()}
        result = OptimizationResult(
            x=x,
            parameters=self._variables.named(final.parameters),
            value=final.objective,
            gradient=point.gradients[0].copy(),
            constraints={name: float(own[0]) if own.size == 1 else own.copy() for name, own in values.items()},
            success=success,
            message=message,
            method=method,
            n_iterations=iterations,
            n_evaluations=target.evaluator.count,
            history=tuple(target.evaluator.history),
            change_at_optimum=beside,
            raw=raw,
            _sequence=self._sequence,
        )
        if sided is not None and is_refused:
            remedy = "Exclude one side by bounds or order=, start elsewhere, or look at it with dh.scan."
            raise sided.refusal(f"objective {final.objective:.9g}", result, remedy)
        return result

    def _change_beside(self, target: Target, final: Evaluation, sided: OneSided | None) -> ChangeAtOptimum | None:
        """Find a change next to the final point, and warn if it is a kink or jump, or derivatives are one-sided."""
        names = (self.objective, *self._parts)
        found = change_beside(
            self.system, self.t_span, names, final, target.evaluator.history, self._variables.indices, self.derivatives,
            self._call, self._options,
        )  # fmt: skip
        if found is not None and found.change.kind != "smooth":
            one, two = found.change.sequences
            what = {
                "jump": "has a jump", "kink": "has a kink", "unresolved": "may have a kink or a jump"
            }[found.change.kind]  # fmt: skip
            warnings.warn(
                f"The final point lies next to a change of the sequence of events ({one.difference(two)}), at which "
                f"the objective or a constraint {what}. Conditions on the gradient mean nothing there: look at it with "
                "dh.scan.",
                DerivativeWarning,
                stacklevel=4,
            )
        elif sided is not None:
            warnings.warn(
                f"Conditions on the gradient mean nothing at the final point. {sided.reason}",
                DerivativeWarning,
                stacklevel=4,
            )
        return found

    def _sequence(self, evaluation: Evaluation) -> EventSequence:
        """The sequence of events of an evaluation, by another run unless it is known."""
        if evaluation.digest not in self._sequences:
            if len(self._sequences) >= MAX_SEQUENCES:
                self._sequences.clear()
            run = self._prepared(evaluation.parameters)
            self._sequences[evaluation.digest] = EventSequence.of(trajectory_of(run.single))
        return self._sequences[evaluation.digest]

    def __repr__(self) -> str:
        verb = "maximize" if self._sign < 0 else "minimize"
        given = f", subject to {', '.join(self._parts)}" if self._parts else ""
        what = f"{verb} '{self.objective}' of '{self.system.name}' by {', '.join(self.labels)}"
        return f"<OptimizationProblem: {what}{given}>"


def _constraints(
    system: HybridSystem, objective: str, given: Mapping[str, Bound] | None
) -> tuple[dict[str, slice], tuple[Array, Array]]:
    """Places of the constraints behind the objective, and their lower and upper limits, (m,)."""
    layout = system.functionals
    if layout[objective].stop - layout[objective].start != 1:
        raise ParameterError(f"The objective '{objective}' is a vector.", remedy="Choose a scalar functional.")
    if given is not None and not isinstance(given, Mapping):
        raise OptionError("constraints must be a mapping of functionals to pairs (lower, upper).")
    parts, limits, end = dict[str, slice](), [(np.zeros(0), np.zeros(0))], 1
    for name, pair in (given or {}).items():
        system.functional_name(name)
        if name == objective:
            raise ParameterError(f"'{name}' is the objective and cannot be a constraint, too.")
        size = layout[name].stop - layout[name].start
        limits.append(bound_pair(f"constraints[{name!r}]", pair, size))
        parts[name], end = slice(end, end + size), end + size
    lower, upper = (np.concatenate(own) for own in zip(*limits, strict=True))
    return parts, (lower, upper)


def _analysis(given: str, n_parameters: int, n_components: int) -> Analysis:
    if given not in ("auto", "forward", "adjoint"):
        raise OptionError(f"derivatives must be 'auto', 'forward' or 'adjoint', got {given!r}.")
    if given == "auto":
        return "adjoint" if n_parameters > ADJOINT_PARAMETER_RATIO * n_components else "forward"
    return "forward" if given == "forward" else "adjoint"


__all__ = ["OptimizationProblem"]
