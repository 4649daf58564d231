"""Monte Carlo and quasi-Monte Carlo: samples of a functional of random parameters."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Literal, Unpack

import numpy as np

from dae_hybrid.ensembles.scheduling import EnsembleProgress
from dae_hybrid.ensembles.workers import ExecutorLike
from dae_hybrid.errors import OptionError
from dae_hybrid.interface.api import RunOptions
from dae_hybrid.interface.runs import Parameters
from dae_hybrid.numerics.arrays import Array
from dae_hybrid.options import positive_integer
from dae_hybrid.system.system import HybridSystem
from dae_hybrid.uncertainty.inputs import Inputs, Sampler, check_inputs, checked_seed, owners
from dae_hybrid.uncertainty.runs import (
    MAX_FAILED,
    Execution,
    check_continues,
    checked_call,
    checked_share,
    evaluate,
    scalar_functional,
    warn_of_failures,
    warn_of_moments,
)
from dae_hybrid.uncertainty.sample import MonteCarlo


def monte_carlo(
    system: HybridSystem,
    t_span: Sequence[float],
    inputs: Inputs,
    n: int,
    *,
    functional: str | None = None,
    gradient: Literal["forward", "adjoint", True] | None = None,
    wrt: str | Sequence[str] | None = None,
    parameters: Parameters = None,
    sampler: Sampler = "sobol",
    replicates: int = 8,
    seed: int | None = 0,
    max_failed: float = MAX_FAILED,
    executor: ExecutorLike | None = None,
    workers: int | None = None,
    store: str | os.PathLike[str] | None = None,
    progress: bool | Callable[[EnsembleProgress], object] = False,
    adapter: str = "sundials",
    **options: Unpack[RunOptions],
) -> MonteCarlo:
    """Sample a functional of random parameters, by Monte Carlo or quasi-Monte Carlo.

    Parameters
    ----------
    system, t_span, adapter, **options
        As in `simulate`.
    inputs : Inputs
        Distributions of the random parameters.
    n : int
        Number of runs, of all replicates together; a multiple of `replicates`, and n / replicates a power of two for
        ``sampler="sobol"``.
    functional : str, optional
        Name of a scalar functional; optional if the model has only one.
    gradient : {None, "forward", "adjoint", True}
        Analysis that computes the gradients of the runs, if any; True selects by the number of parameters.
    wrt : str or sequence of str, optional
        Parameters to differentiate by, design or random; default all. The runs are also differentiated by the random
        parameters, with which jumps are recognised.
    parameters : mapping, labelled array or array, optional
        Values of the design parameters; default nominal.
    sampler : {"sobol", "halton", "latin_hypercube", "random"}
        Points, see `Inputs.sample`.
    replicates : int
        Number of independently randomised samples, at least 2; they give the standard errors.
    seed : int or None
        Seed of the sample; None draws an unpredictable one, and is refused with `store`.
    max_failed : float
        Largest share of failed runs that statistics may omit.
    executor, workers, store, progress
        As in `ensemble`; results of the runs are in folders of `store`, from which the same call continues.

    Returns
    -------
    MonteCarlo
        The sample and its statistics. Failed runs are kept with their errors.

    Raises
    ------
    ParameterError, OptionError, UnsupportedError
        An argument is invalid or not supported.

    Warns
    -----
    UncertaintyWarning
        Runs failed, or a distribution has no finite variance.

    References
    ----------
    A. B. Owen, Randomly permuted (t, m, s)-nets and (t, s)-sequences, in: Monte Carlo and Quasi-Monte Carlo Methods in
    Scientific Computing, Springer, 1995, 299-317.

    Examples
    --------
    >>> from scipy import stats
    >>> import dae_hybrid as dh
    >>> m = dh.HybridModel("decay")
    >>> k, y = m.parameter("k", 1.0), m.differential("y")
    >>> m.initial(m.mode("run", ode={y: -k * y}), {y: 1.0})
    >>> m.functional("rest", terminal=y)
    >>> decay = m.build()
    >>> inputs = dh.Inputs(decay, {"k": stats.norm(1.0, 0.1)})
    >>> found = dh.monte_carlo(decay, (0, 1), inputs, 1024, gradient=True, rtol=1e-8, atol=1e-10)
    >>> round(found.mean.value, 3), round(found.quantile(0.95).value, 2)  # exact: 0.3697, 0.4337
    (0.37, 0.43)
    >>> found.gradient("mean").value.round(3)  # by a shift of k; exact: -0.3697
    array([-0.37])
    """
    own, name = check_inputs(inputs, system), scalar_functional(system, functional)
    share = checked_share(max_failed)
    wanted = system.parameter_indices(wrt)  # refuses unknown names, with and without gradients
    count, parts = positive_integer("n", n), positive_integer("replicates", replicates)
    u = replicate_points(own, count, parts, sampler, seed)
    call = checked_call(adapter, options)
    check_continues(store, seed)
    warn_of_moments(own, 2)
    how = Execution(executor, workers, store, progress)
    # the search for jumps compares values along random parameters
    names = owners(system, {*wanted, *own.indices})
    by_names = wrt if gradient is None else names
    runs = evaluate(system, t_span, own.table(u, parameters), name, gradient, by_names, call, how)
    gradients = by_random = None
    if runs.gradients is not None:
        columns = list(system.parameter_indices(names))
        gradients, by_random = (
            runs.gradients[:, [columns.index(i) for i in indices]] for indices in (wanted, own.indices)
        )
    labels = system.parameters.labels()
    found = MonteCarlo(
        system=system, inputs=own, functional=name, parameters=runs.parameters, values=runs.values,
        gradients=gradients, wrt=() if gradients is None else tuple(labels[i] for i in wanted), errors=runs.errors,
        refusals=runs.refusals, digest=runs.digest, replicate=np.repeat(np.arange(parts), count // parts),
        _max_failed=share, _u=u, _t_span=t_span, _call=call, _by_random=by_random,
    )  # fmt: skip
    warn_of_failures("run", found.errors, 2)
    if found.refusals != found.errors:
        warn_of_failures("gradient", found.refusals, 2)
    return found


def replicate_points(inputs: Inputs, count: int, parts: int, sampler: str, seed: int | None) -> Array:
    """Standard normal points of independent replicates, (count, k)."""
    if parts < 2 or count % parts or count // parts < 2:
        raise OptionError(
            f"n must be a multiple of replicates, with at least two runs in each of at least two replicates; got n = "
            f"{count} and replicates = {parts}."
        )
    if sampler == "sobol":
        each = count // parts
        if each & (each - 1):
            below = parts << (each.bit_length() - 1)
            raise OptionError(
                f"n / replicates must be a power of two for Sobol points, got {count} / {parts} = {each}.",
                remedy=f"With {parts} replicates, the neighbours of n are {below} and {2 * below}.",
            )
    seeds = np.random.SeedSequence(checked_seed(seed)).spawn(parts)
    return np.vstack([inputs.normal_points(count // parts, sampler, own) for own in seeds])
