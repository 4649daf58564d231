"""Random parameters: marginal distributions joined by a Gaussian copula."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import cached_property, partial
from typing import Any, Literal

import numpy as np
import scipy
from numpy.typing import ArrayLike
from scipy.special import ndtr, ndtri

from dae_hybrid.errors import AssumptionError, OptionError, ParameterError
from dae_hybrid.interface.runs import Parameters
from dae_hybrid.numeric_input import as_mapping, real_array, shown
from dae_hybrid.numerics.arrays import Array
from dae_hybrid.options import positive_integer
from dae_hybrid.system.system import HybridSystem, check_built
from dae_hybrid.tables import counted
from dae_hybrid.uncertainty.correlation import correlation_matrix
from dae_hybrid.uncertainty.covariance import correlation_of_values, normal_coefficients

type Sampler = Literal["sobol", "halton", "latin_hypercube", "random"]
SAMPLERS = ("sobol", "halton", "latin_hypercube", "random")
#: least and largest coordinate of a sample in the unit cube: a distribution may be infinite at 0 and 1
LEAST, LARGEST = 2.0**-54, 1 - 2.0**-53
#: least difference of quartiles: its square must not underflow
LEAST_SPREAD = 1e-150
#: nodes of the quadrature of covariances and of the one that it is compared with, and its allowed relative error in
#: variances
NODES, FEWER_NODES, QUADRATURE_ERROR = 80, 56, 1e-3


class Inputs:
    """Random parameters of a system: marginal distributions, joined by a Gaussian copula.

    Parameter i is ``x_i = F_i^-1(Phi(z_i))`` with the normal scores z, which have standard normal marginals and the
    correlation matrix R; Phi is the standard normal distribution function. ``z = L u`` with the Cholesky factor of
    R = L L^T relates them to independent standard normal variables u.

    Parameters
    ----------
    system : HybridSystem
        The system whose parameters are random. Parameters without a distribution are design parameters.
    distributions : mapping of str to frozen distribution
        Frozen continuous distributions of `scipy.stats`, by parameter or entry of a vector parameter (``"k[1]"``).
    correlation : mapping of (str, str) to float, or array, shape (k, k), optional
        Correlation of the normal scores z, not of the parameters (the two agree for normal distributions): by pairs of
        names, others zero, or as a matrix. Rows and columns of a DataFrame or DataArray are read by their labels; those
        of an array are in the order of `distributions`. Default: independent.

    Attributes
    ----------
    names : tuple of str
        Names of the random parameters, in the order of `distributions`.
    indices : tuple of int
        Their places among all parameters.
    correlation : ndarray, shape (k, k)
        Correlation matrix of the normal scores.
    mean, std : ndarray, shape (k,)
        Means and standard deviations of the marginal distributions; infinite or NaN where a distribution has none.

    Raises
    ------
    ParameterError
        A name is unknown or given twice, or a distribution is not a frozen continuous one with valid numbers.
    OptionError
        The correlation has a wrong shape or unknown names or labels, or is not positive definite.

    References
    ----------
    A. Der Kiureghian, P.-L. Liu, Structural reliability under incomplete probability information, Journal of
    Engineering Mechanics 112 (1986), 85-104.

    Examples
    --------
    >>> from scipy import stats
    >>> import dae_hybrid as dh
    >>> from dae_hybrid.problems import em_hysteresis
    >>> inputs = dh.Inputs(em_hysteresis.system(), {"ka": stats.norm(316, 8), "kb": stats.uniform(9, 2)})
    >>> inputs.sample(4).shape, inputs.mean
    ((4, 4), array([316.,  10.]))
    >>> inputs.from_normal([0.0, 0.0])
    array([316.,  10.])
    """

    def __init__(
        self,
        system: HybridSystem,
        distributions: Mapping[str, Any],
        correlation: Mapping[tuple[str, str], float] | ArrayLike | None = None,
    ) -> None:
        check_built(system)
        self.system = system
        self.names, self.indices = _places(system, distributions)
        self.distributions = tuple(_checked(name, given) for name, given in distributions.items())
        self.correlation = correlation_matrix(self.names, correlation)
        self.correlation.flags.writeable = False
        self._root = np.linalg.cholesky(self.correlation)

    @property
    def is_independent(self) -> bool:
        """Whether no two parameters are correlated."""
        return bool((self.correlation == np.eye(len(self))).all())

    @cached_property
    def mean(self) -> Array:
        """Means, shape (k,)."""
        return np.array([float(own.mean()) for own in self.distributions])

    @cached_property
    def std(self) -> Array:
        """Standard deviations, shape (k,)."""
        return np.array([float(own.std()) for own in self.distributions])

    @cached_property
    def covariance(self) -> Array:
        """Covariance matrix of the parameters, shape (k, k): Mehler's series, with coefficients by quadrature.

        Raises
        ------
        AssumptionError
            A distribution has no finite mean and variance, or the quadrature does not reproduce its variance.
        """
        return self._covariance(NODES)

    @cached_property
    def covariance_error(self) -> Array:
        """Estimated errors of `covariance`, shape (k, k): its difference from a quadrature with fewer nodes."""
        return self.covariance - self._covariance(FEWER_NODES)

    def _covariance(self, nodes: int) -> Array:
        self._check_moments()
        if self.is_independent:
            return np.diag(self.std**2)
        coefficients = list[Array]()
        for name, own, std in zip(self.names, self.distributions, self.std, strict=True):
            coefficients.append(normal_coefficients(partial(_quantile, own), nodes))
            if not abs((coefficients[-1] ** 2).sum() / std**2 - 1) <= QUADRATURE_ERROR and nodes == NODES:
                raise AssumptionError(
                    f"The covariance with '{name}' cannot be computed: quadrature of its variance has an error above "
                    f"{QUADRATURE_ERROR:g}.",
                    remedy="Use monte_carlo, which needs no covariance, or a distribution with lighter tails and "
                    "without gaps.",
                )
        return np.outer(self.std, self.std) * correlation_of_values(coefficients, self.correlation)

    def _check_moments(self) -> None:
        for name, mean, std in zip(self.names, self.mean, self.std, strict=True):
            if not (np.isfinite(mean) and np.isfinite(std)):
                raise AssumptionError(
                    f"The distribution of '{name}' has no finite mean and variance.",
                    remedy="Use quantiles of monte_carlo, or form: they need no moments.",
                )

    def from_normal(self, u: ArrayLike) -> Array:
        """Parameters, (..., k), of independent standard normal variables u, (..., k)."""
        z = self._given("u", u) @ self._root.T
        return np.stack([_quantile(own, z[..., i]) for i, own in enumerate(self.distributions)], axis=-1)

    def to_normal(self, x: ArrayLike) -> Array:
        """Independent standard normal variables, (..., k), of parameters x, (..., k); the inverse of `from_normal`.

        Infinite at the ends of a support, NaN beyond them. So are then the entries of correlated parameters that come
        later; NaN if infinite terms of both signs meet.
        """
        given = self._given("x", x)
        z = np.stack([_score(own, given[..., i]) for i, own in enumerate(self.distributions)], axis=-1)
        u = np.empty_like(z)
        with np.errstate(invalid="ignore"):
            for i, row in enumerate(self._root):
                earlier = np.flatnonzero(row[:i])  # without zeros, which have no product with infinity
                u[..., i] = (z[..., i] - u[..., earlier] @ row[earlier]) / row[i]
        return u

    def jacobian(self, u: ArrayLike) -> Array:
        """Derivatives dx/du of `from_normal` at u, (..., k, k); its inverse is the Jacobian of `to_normal`."""
        z = self._given("u", u) @ self._root.T
        columns = []
        for i, own in enumerate(self.distributions):
            log_density = own.logpdf(_quantile(own, z[..., i]))
            columns.append(np.exp(-0.5 * z[..., i] ** 2 - 0.5 * np.log(2 * np.pi) - log_density))
        return np.stack(columns, axis=-1)[..., :, None] * self._root

    def _given(self, what: str, given: ArrayLike) -> Array:
        try:
            found = real_array(given)
        except ValueError as reason:
            raise ParameterError(f"{what} {reason}.") from None
        if found.ndim == 0 or found.shape[-1] != len(self):
            raise ParameterError(
                f"{what} needs {counted(len(self), 'entry')} along its last axis ({', '.join(self.names)}), got shape "
                f"{found.shape}."
            )
        return found

    def sample(
        self, n: int, *, sampler: Sampler = "sobol", seed: int | None = 0, parameters: Parameters = None
    ) -> Array:
        """Draw parameter sets.

        Parameters
        ----------
        n : int
            Number of sets; a power of two for ``sampler="sobol"``.
        sampler : {"sobol", "halton", "latin_hypercube", "random"}
            Scrambled low-discrepancy points, a Latin hypercube, or pseudo-random points, by `scipy.stats.qmc`.
        seed : int or None
            Seed; None draws an unpredictable one.
        parameters : mapping, labelled array or array, optional
            Values of the design parameters, as in `simulate`; default nominal.

        Returns
        -------
        ndarray, shape (n, n_parameters)
            All parameters in order of declaration, as `batch` takes them.

        Raises
        ------
        OptionError
            n is not a positive integer or not a power of two, the sampler is unknown, or the seed is not an integer.
        ParameterError
            `parameters` names a random parameter, or is invalid.
        """
        return self.table(self.normal_points(n, sampler, checked_seed(seed)), parameters)

    def normal_points(self, n: int, sampler: str, seed: int | np.random.SeedSequence | None) -> Array:
        """Independent standard normal points of a sample, (n, k)."""
        count, k = positive_integer("n", n), len(self)
        if sampler not in SAMPLERS:
            raise OptionError(f"Unknown sampler {shown(sampler)}.", remedy=f"Samplers: {', '.join(SAMPLERS)}.")
        rng, qmc = np.random.default_rng(seed), scipy.stats.qmc
        if sampler == "random":
            points = rng.random((count, k))
        elif sampler == "sobol":
            check_power_of_two("n", count)
            points = qmc.Sobol(k, rng=rng).random_base2(count.bit_length() - 1)
        else:
            points = (qmc.Halton if sampler == "halton" else qmc.LatinHypercube)(k, rng=rng).random(count)
        return np.asarray(ndtri(np.clip(points, LEAST, LARGEST)))

    def table(self, u: Array, parameters: Parameters = None) -> Array:
        """All parameters, (n, n_parameters), with the random ones at u, (n, k)."""
        rows = np.tile(self.design(parameters), (len(u), 1))
        rows[:, self.indices] = self.from_normal(u)
        return rows

    def design(self, parameters: Parameters) -> Array:
        """All parameters with the given values of the design parameters, (n_parameters,)."""
        given = as_mapping(parameters)
        if isinstance(given, Mapping):
            layout = self.system.parameters
            labels, random = layout.labels(), set(self.indices)
            for name in given:
                part = layout[name] if name in layout else slice(0, 0)
                if name in self.names or {labels[i] for i in random} & set(labels[part]):
                    raise ParameterError(
                        f"parameters gives a value for '{name}', which is random.",
                        remedy="Leave it out, or leave out its distribution.",
                    )
        return self.system.parameter_vector(parameters)

    def __len__(self) -> int:
        return len(self.names)

    def __repr__(self) -> str:
        kind = "independent" if self.is_independent else "correlated"
        own = (f"{name}: {one.dist.name}" for name, one in zip(self.names, self.distributions, strict=True))
        return f"<Inputs of '{self.system.name}', {kind}: {', '.join(own)}>"


def check_inputs(inputs: object, system: HybridSystem) -> Inputs:
    """Refuse random parameters of another system."""
    check_built(system)
    if not isinstance(inputs, Inputs):
        raise OptionError(f"inputs must be dh.Inputs(system, distributions), got {shown(inputs)}.")
    if inputs.system.parameters != system.parameters:
        raise OptionError(
            f"inputs belong to '{inputs.system.name}', whose parameters differ from those of '{system.name}'.",
            remedy="Create Inputs with the system that is run.",
        )
    return inputs


def owners(system: HybridSystem, indices: Collection[int]) -> list[str]:
    """Parameters that contain these entries, in order of declaration."""
    layout = system.parameters
    return [name for name in layout.names if not set(indices).isdisjoint(range(layout[name].start, layout[name].stop))]


def check_power_of_two(what: str, count: int) -> None:
    """Refuse a number of Sobol points that is not a power of two."""
    if count & (count - 1):
        below = 1 << (count.bit_length() - 1)
        raise OptionError(
            f"{what} must be a power of two for Sobol points, got {count}.",
            remedy=f"Its neighbours are {below} and {2 * below}.",
        )


def checked_seed(seed: object) -> int | None:
    """Check a seed."""
    if seed is not None and (isinstance(seed, bool) or not isinstance(seed, int | np.integer) or seed < 0):
        raise OptionError(f"seed must be a non-negative integer or None, got {shown(seed)}.")
    return None if seed is None else int(seed)


def _places(system: HybridSystem, distributions: object) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """Names of random parameters and their places among all parameters."""
    if not isinstance(distributions, Mapping) or not distributions:
        raise ParameterError(
            f"distributions must be a mapping of parameters to distributions, got {shown(distributions)}."
        )
    layout, labels, found = system.parameters, system.parameters.labels(), list[int]()
    for name in distributions:
        if isinstance(name, str) and name in layout:
            part = layout[name]
            if part.stop - part.start > 1:
                raise ParameterError(
                    f"'{name}' is a vector of {part.stop - part.start} entries.",
                    remedy=f"Give each random entry its distribution: '{name}[0]', ...",
                )
            place = part.start
        elif name in labels:
            place = labels.index(name)
        else:
            raise ParameterError(
                f"distributions names {shown(name)}, which is not a parameter of '{system.name}'.",
                remedy=f"Parameters: {', '.join(labels) or 'none'}.",
            )
        if place in found:
            raise ParameterError(f"distributions names '{labels[place]}' twice.")
        found.append(place)
    return tuple(distributions), tuple(found)


def _checked(name: str, given: Any) -> Any:
    if not isinstance(getattr(given, "dist", None), scipy.stats.rv_continuous):
        remedy = "For example stats.norm(10, 0.5); discrete distributions are not supported."
        if isinstance(given, scipy.stats.rv_continuous):
            remedy = "Call it to freeze it, for example stats.norm(10, 0.5), or stats.rv_histogram(counts)()."
        elif hasattr(given, "icdf"):
            remedy = "Random variables of SciPy's new interface are not supported: use stats.norm, not stats.Normal."
        raise ParameterError(
            f"The distribution of '{name}' must be a frozen continuous distribution of scipy.stats, got "
            f"{shown(given)}.",
            remedy=remedy,
        )
    with np.errstate(all="ignore"):
        middle = np.asarray(given.ppf([0.25, 0.5, 0.75])) if np.ndim(given.ppf(0.5)) == 0 else np.array([np.nan])
    if not np.isfinite(middle).all() or not (np.diff(middle) > LEAST_SPREAD).all():
        raise ParameterError(
            f"The distribution of '{name}' ({given.dist.name}{given.args or given.kwds}) has invalid arguments, or a "
            "spread too small for double precision.",
            remedy="Arguments must be finite numbers, not arrays, and the scale positive.",
        )
    return given


def _quantile(distribution: Any, z: Array) -> Array:
    """F^-1(Phi(z)), accurate in both tails."""
    z = np.asarray(z, dtype=float)
    found, upper = np.empty_like(z), z > 0
    found[upper], found[~upper] = distribution.isf(ndtr(-z[upper])), distribution.ppf(ndtr(z[~upper]))
    return found


def _score(distribution: Any, x: Array) -> Array:
    """Phi^-1(F(x)), accurate in both tails; NaN outside the support."""
    lower, upper = distribution.support()
    below, above = distribution.cdf(x), distribution.sf(x)
    score = np.where(below < above, ndtri(below), -ndtri(above))
    return np.where((x < lower) | (x > upper), np.nan, score)


def named(names: Sequence[str]) -> str:
    """Names in a message."""
    return ", ".join(f"'{name}'" for name in names)
