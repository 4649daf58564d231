"""Propagation of uncertainty by gradients: mean and variance of a functional to first order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Unpack

import numpy as np

from dae_hybrid.errors import AssumptionError
from dae_hybrid.interface.api import RunOptions
from dae_hybrid.interface.prepared import prepare
from dae_hybrid.interface.runs import Parameters
from dae_hybrid.numerics.arrays import EPS, Array
from dae_hybrid.options import Options
from dae_hybrid.system.system import HybridSystem
from dae_hybrid.tables import align, html
from dae_hybrid.uncertainty.inputs import QUADRATURE_ERROR, Inputs, check_inputs, owners
from dae_hybrid.uncertainty.runs import cheapest, scalar_functional

#: a variance below this share of its parts, if these cancel, is rounding
ROUNDED = 1e3 * EPS


@dataclass(frozen=True, eq=False)
class LinearPropagation:
    """Mean and variance of a functional to first order; made by `linear_propagation`.

    Attributes
    ----------
    functional : str
    names : tuple of str
        Random parameters.
    mean : float
        Value of the functional at the means of the parameters.
    std : float
        Standard deviation to first order, ``sqrt(g^T C g)`` with the gradient g and the covariance matrix C.
    gradient : ndarray, shape (k,)
        Gradient by the random parameters at their means.
    share : ndarray, shape (k,)
        Share of the variance of each parameter, ``g_i (C g)_i / g^T C g``; they add up to one. Shares of correlated
        parameters contain half of each covariance and may be negative. NaN if the variance is zero.
    """

    functional: str
    names: tuple[str, ...]
    mean: float
    std: float
    gradient: Array
    share: Array

    def __repr__(self) -> str:
        return f"<LinearPropagation of '{self.functional}': mean {self.mean:.6g}, standard deviation {self.std:.6g}>"

    def _rows(self) -> list[list[str]]:
        rows = [["parameter", "gradient", "share of variance"]]
        for name, slope, share in zip(self.names, self.gradient, self.share, strict=True):
            rows.append([name, f"{slope:.6g}", f"{share:.4f}"])
        return rows

    def __str__(self) -> str:
        return "\n".join([repr(self), *align(self._rows())])

    def _repr_html_(self) -> str:
        return html(repr(self), self._rows())


def linear_propagation(
    system: HybridSystem,
    t_span: Sequence[float],
    inputs: Inputs,
    *,
    functional: str | None = None,
    parameters: Parameters = None,
    adapter: str = "sundials",
    **options: Unpack[RunOptions],
) -> LinearPropagation:
    """Propagate the means and covariances of random parameters by the gradient at the means: one run.

    Parameters
    ----------
    system, t_span, adapter, **options
        As in `simulate`.
    inputs : Inputs
        Distributions of the random parameters, with finite means and variances.
    functional : str, optional
        Name of a scalar functional; optional if the model has only one.
    parameters : mapping, labelled array or array, optional
        Values of the design parameters; default nominal.

    Returns
    -------
    LinearPropagation
        Mean, standard deviation and shares. They are exact for a linear functional, and blind to curvature and to
        changes of the sequence of events within the distributions; `monte_carlo` shows how much these matter.

    Raises
    ------
    AssumptionError
        A distribution has no finite mean and variance, a covariance cannot be computed, or contributions of correlated
        parameters cancel so far that the error of the covariances matters.
    ParameterError, OptionError, UnsupportedError
        An argument is invalid.
    DaeHybridError
        The run at the means fails, or its gradient is refused.

    Examples
    --------
    >>> from scipy import stats
    >>> import dae_hybrid as dh
    >>> from dae_hybrid.problems import em_hysteresis
    >>> system = em_hysteresis.system()
    >>> inputs = dh.Inputs(system, {"ka": stats.norm(316, 8), "kb": stats.norm(10, 0.2)})
    >>> found = dh.linear_propagation(system, em_hysteresis.t_span, inputs, rtol=1e-8, atol=1e-12)
    >>> round(found.std, 6), found.share.round(3)
    (0.000669, array([0.027, 0.973]))
    """
    own, name = check_inputs(inputs, system), scalar_functional(system, functional)
    Options.of(options)
    covariance = own.covariance
    p, wrt = own.design(parameters), owners(system, own.indices)
    p[list(own.indices)] = own.mean
    columns = list(system.parameter_indices(wrt))
    run = prepare(
        system, t_span, functional=name, derivatives=cheapest(len(columns)), wrt=wrt, adapter=adapter, **options
    )(p)
    gradient = np.asarray(run.gradient[name])[[columns.index(i) for i in own.indices]]
    parts = gradient * (covariance @ gradient)
    variance = float(parts.sum())
    error = abs(float(gradient @ own.covariance_error @ gradient))
    rounding = ROUNDED * float(np.abs(gradient) @ np.abs(covariance) @ np.abs(gradient))
    if error > QUADRATURE_ERROR * variance or variance < rounding:
        raise AssumptionError(
            f"The variance of '{name}' cannot be computed: contributions of correlated parameters cancel, and the "
            f"error of their covariances is above {QUADRATURE_ERROR:g} of the rest.",
            remedy="Use monte_carlo, which needs no covariance.",
        )
    share = parts / variance if variance > 0 else np.full(parts.size, np.nan)
    return LinearPropagation(name, own.names, float(run.value), float(np.sqrt(variance)), gradient, share)
