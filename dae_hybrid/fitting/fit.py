"""`fit`: least squares on the data of experiments, with exact derivatives."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, Literal, Unpack

import numpy as np
from numpy.typing import ArrayLike

from dae_hybrid.cancellation import carried
from dae_hybrid.codegen.compiler import cores
from dae_hybrid.errors import OptionError, ParameterError
from dae_hybrid.fitting.experiment import Experiment
from dae_hybrid.fitting.free_parameters import Owner, Priors, free_parameters, names_of
from dae_hybrid.fitting.losses import LOSSES, LossName
from dae_hybrid.fitting.misfit import RUN_ERRORS, Misfit, Penalty
from dae_hybrid.fitting.prediction import Prediction
from dae_hybrid.fitting.result import Fit
from dae_hybrid.fitting.search import (
    LEAST_SQUARES,
    SCALAR,
    Derivatives,
    FitProgress,
    Search,
    latin_hypercube,
    optimagic_algorithm,
    search,
)
from dae_hybrid.interface.api import RunOptions
from dae_hybrid.numeric_input import shown
from dae_hybrid.optimization.scaling import Bound, Scale
from dae_hybrid.options import Options, positive_integer
from dae_hybrid.progress import ProgressReport, check_report
from dae_hybrid.system.system import HybridSystem, check_built

#: number of free parameters of an experiment above which the default is the adjoint with L-BFGS-B
MANY_PARAMETERS = 50


def fit(
    system: HybridSystem,
    experiments: Experiment | Sequence[Experiment],
    free: str | Sequence[str] | Mapping[str, ArrayLike],
    *,
    local: str | Sequence[str] = (),
    bounds: Mapping[str, Bound] | None = None,
    scale: Scale | Mapping[str, Scale] = "linear",
    priors: Priors | None = None,
    penalty: Penalty | None = None,
    parameters: Mapping[str, ArrayLike] | None = None,
    loss: LossName = "linear",
    f_scale: float = 1.0,
    optimizer: str | None = None,
    derivatives: Literal["forward", "adjoint"] | None = None,
    starts: int = 1,
    seed: int | None = 0,
    workers: int | None = None,
    progress: bool | Callable[[FitProgress], object] = False,
    optimizer_options: Mapping[str, Any] | None = None,
    adapter: str = "sundials",
    **options: Unpack[RunOptions],
) -> Fit:
    """Estimate parameters from the data of one or several experiments by least squares.

    The cost is 1/2 sum rho(r^2) over the residuals r = (predicted - measured) / sigma of all experiments, plus half
    the squares of priors and penalties. Derivatives are exact across events. A point at which a run fails, or has no
    derivatives, does not end the fit: the step is shortened, and `Fit.failures` keeps the reason. Where derivatives are
    one-sided, as where a dose whose time is estimated is at the very time of a value, one side within the bounds is
    taken, and `Fit.one_sided` says which.

    Parameters
    ----------
    system : HybridSystem
        System of all experiments that do not have their own.
    experiments : Experiment or sequence of Experiment
        Data with their conditions.
    free : str, sequence of str, or mapping of str to float or array
        Parameters to estimate; a mapping gives their starts, by default the nominal values.
    local : str or sequence of str
        Free parameters with a value of its own for every experiment.
    bounds : mapping of str to (lower, upper), optional
        Bounds; None or infinity leaves a side open.
    scale : {"linear", "log", "logit"}, float, or mapping of str to these
        Scale in which steps are taken and intervals are symmetric. ``"log"`` keeps a parameter positive, ``"logit"``
        between its bounds. A number is the unit of a linear scale.
    priors : mapping of str to (mean, sd), optional
        Normal priors in the scale of the parameter: with ``"log"``, `mean` is the median and `sd` the standard
        deviation of the logarithm. They need ``sigma`` in the experiments, against which they are weighed.
    penalty : callable, optional
        Further residuals, as CasADi expressions of the free parameters by label:
        ``lambda q: [0.1 * (q["a"] - q["b"])]``.
    parameters : mapping, optional
        Values of other parameters in all experiments.
    loss : {"linear", "soft_l1", "huber", "cauchy", "arctan"}
        Loss of the data's residuals, as in `scipy.optimize.least_squares`.
    f_scale : float
        Residual from which a loss treats values as outliers.
    optimizer : str, optional
        ``"trf"`` (default) or ``"dogbox"`` of `scipy.optimize.least_squares`; ``"L-BFGS-B"`` or ``"SLSQP"`` of
        `scipy.optimize.minimize`; or the name of an algorithm of optimagic (extra ``[fit]``).
    derivatives : {"forward", "adjoint"}, optional
        Analysis: forward gives the Jacobian, at the cost of one linear system per free parameter; the adjoint gives the
        gradient at a cost that does not grow with their number, for optimizers of `minimize`. By default forward with
        ``"trf"`` for up to 50 free parameters of an experiment, else the adjoint with ``"L-BFGS-B"``, which needs
        parameters of comparable size (see `scale`).
    starts : int
        Number of starts: the given one, and a Latin hypercube within the bounds, which must be finite.
    seed : int, optional
        Seed of the hypercube.
    workers : int, optional
        Number of threads for the starts, or for the experiments of one start; default the number of cores.
    progress : bool or callable
        True shows a line on the terminal. A function receives a `FitProgress` after every evaluation; if it raises
        StopIteration, the best point so far is the result.
    optimizer_options : mapping, optional
        Options of the optimizer, under its own names: ``{"xtol": 1e-12}``.
    adapter, **options
        As in `simulate`.

    Returns
    -------
    Fit
        Estimates, standard errors, profiles and predictions.

    Raises
    ------
    ParameterError, OptionError
        An argument is invalid.
    OneSidedError
        Derivatives are one-sided at the optimum, and bounds do not exclude the other side: standard errors do not
        exist. `OneSidedError.result` is the fit.
    DaeHybridError
        The error of the run at the start, if every start fails.

    Examples
    --------
    >>> import dae_hybrid as dh
    >>> m = dh.HybridModel("cooling")
    >>> k, x = m.parameter("k", 1.0), m.differential("x")
    >>> m.initial(m.mode("run", ode={x: -k * x}), {x: 1.0})
    >>> data = dh.Experiment({"x": [0.61, 0.36, 0.23]}, [1.0, 2.0, 3.0])
    >>> found = dh.fit(m.build(), data, "k", rtol=1e-9, atol=1e-12)
    >>> found.estimates.round(4), found.standard_errors.round(4)
    (array([0.4993]), array([0.0067]))
    """
    check_built(system)
    given = _experiments(experiments)
    _check_choices(loss, f_scale, starts, workers, progress, options)
    names = [str(i) if e.name is None else e.name for i, e in enumerate(given, start=1)]
    if len(set(names)) < len(names):
        raise ParameterError(f"Experiments need different names, got {names}.")
    owners = [Owner(e.system or system, name, frozenset(e.parameters)) for e, name in zip(given, names, strict=True)]
    fixed = {} if parameters is None else parameters
    if not isinstance(fixed, Mapping):
        raise ParameterError(f"parameters must be a mapping of names to values, got {shown(parameters)}.")
    layout = free_parameters(
        owners, free, names_of("local", local), {} if bounds is None else bounds, scale,
        {} if priors is None else priors, fixed,
    )  # fmt: skip
    known = _sigma_is_known(given)
    if layout.has_priors and not known:
        raise ParameterError(
            "Priors need the standard deviations of the values, against which they are weighed.",
            remedy="Give sigma in every experiment.",
        )
    if optimizer is None:
        most = max(len(own) for own, _ in layout.places)
        is_adjoint = derivatives == "adjoint" or (derivatives is None and most > MANY_PARAMETERS)
        optimizer = "L-BFGS-B" if is_adjoint else "trf"
    analysis = _analysis(optimizer, derivatives)
    free_names = names_of("free", free)
    predictions = [
        Prediction(
            e, o.name, o.system, o.system.parameter_vector(common | e.parameters), places,
            [n for n in free_names if n in o.system.parameters], {"adapter": adapter, **options},
        )
        for e, o, common, places in zip(given, owners, _fixed_values(owners, fixed), layout.places, strict=True)
    ]  # fmt: skip
    threads, rtol = cores() if workers is None else workers, Options.of(options).rtol
    misfit = Misfit(predictions, layout, penalty, loss, float(f_scale), threads if starts == 1 else 1, rtol)
    for prediction in predictions:
        with suppress(*RUN_ERRORS):  # a start that fails is met again
            prediction.check_sides(layout.start, misfit.sides.beside(layout.start))
    with ProgressReport(f"fit '{system.name}'", progress, _in_words) as report:
        found = _searches(misfit, optimizer, analysis, optimizer_options or {}, starts, seed, threads, report)
    if found[0].best is None:
        raise found[0].failures[0][1]
    result = Fit(misfit.threaded(threads), tuple(found), optimizer, rtol, known)
    result.refuse_one_sided(found[0].best.one_sided)
    for prediction in predictions:
        prediction.check_sides(found[0].best.q)
    return result


def _searches(
    misfit: Misfit, optimizer: str, derivatives: Derivatives, options: Mapping[str, Any], starts: int, seed: int | None,
    threads: int, report: Callable[[FitProgress], object] | None,
) -> list[Search]:  # fmt: skip
    """Search from all starts; the best one comes first."""
    free, points = misfit.free, [misfit.free.start]
    if starts > 1:
        lower, upper = free.sampled_bounds
        unbounded = [n for n, a, b in zip(free.labels, lower, upper, strict=True) if not np.isfinite([a, b]).all()]
        if unbounded:
            raise ParameterError(
                f"starts={starts} needs finite bounds (positive with scale 'log') of {', '.join(unbounded)}."
            )
        points += [free.natural(s) for s in latin_hypercube(lower, upper, starts - 1, seed)]

    def run(number: int) -> Search:
        return search(misfit, points[number], optimizer, derivatives, options, number, report)

    if starts == 1 or threads < 2:
        found = [run(i) for i in range(starts)]
    else:
        with ThreadPoolExecutor(threads) as pool:
            found = list(pool.map(carried(run), range(starts)))
    return sorted(found, key=lambda one: one.cost)


def _in_words(state: FitProgress) -> str:
    start = f"start {state.start + 1}, " if state.start else ""
    return f"{start}{state.evaluations} evaluations, cost {state.best:.6g}"


def _analysis(optimizer: str, given: str | None) -> Derivatives:
    """The analysis of an optimizer."""
    if given not in (None, "forward", "adjoint"):
        raise OptionError(f"derivatives must be 'forward' or 'adjoint', got {shown(given)}.")
    if optimizer in LEAST_SQUARES:
        kind, needs = "LEAST_SQUARES", True
    elif optimizer in SCALAR:
        kind, needs = "SCALAR", True
    else:
        info = optimagic_algorithm(optimizer)
        kind, needs = info.solver_type.name, info.needs_jac
    if not needs:
        return None
    if kind == "LEAST_SQUARES" and given == "adjoint":
        raise OptionError(
            f"Optimizer {optimizer!r} needs a Jacobian, which the adjoint does not give.",
            remedy=f"Optimizers with a gradient: {', '.join(SCALAR)}.",
        )
    return "forward" if kind == "LEAST_SQUARES" or given == "forward" else "adjoint"


def _experiments(given: Any) -> list[Experiment]:
    found = [given] if isinstance(given, Experiment) else given
    if not isinstance(found, Sequence) or not found or not all(isinstance(e, Experiment) for e in found):
        raise ParameterError(f"experiments must be an Experiment or a list of them, got {shown(given)}.")
    return list(found)


def _check_choices(
    loss: object, f_scale: object, starts: object, workers: object, progress: object, options: Mapping[str, Any]
) -> None:
    if "t_eval" in options:
        raise OptionError("t_eval is not an option of fits: the times are those of the values.")
    if not isinstance(loss, str) or loss not in LOSSES:
        raise OptionError(f"loss must be one of {', '.join(LOSSES)}, got {shown(loss)}.")
    if not isinstance(f_scale, int | float | np.number) or isinstance(f_scale, bool) or not 0 < f_scale < np.inf:
        raise OptionError(f"f_scale must be a positive number, got {shown(f_scale)}.")
    for name, value in (("starts", starts), ("workers", workers)):
        if value is not None:
            positive_integer(name, value)
    check_report("progress", progress)


def _sigma_is_known(experiments: Sequence[Experiment]) -> bool:
    known = {e.has_sigma for e in experiments}
    if len(known) > 1:
        raise ParameterError("Some experiments have sigma and others do not.", remedy="Give sigma in all, or in none.")
    return known.pop()


def _fixed_values(owners: Sequence[Owner], given: Mapping[str, ArrayLike]) -> list[dict[str, ArrayLike]]:
    """The common fixed values that each system has; a name that none has is an error."""
    found = []
    for owner in owners:
        labels = {*owner.system.parameters.names, *owner.system.parameters.labels()}
        found.append({name: value for name, value in given.items() if name in labels})
    for name in given:
        if not any(name in own for own in found):
            owners[0].system.parameter_vector({name: given[name]})  # raises with the names
    return found
