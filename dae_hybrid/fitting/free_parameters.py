"""Free parameters of a fit: their labels, bounds, scales and priors, and their places in every experiment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dae_hybrid.errors import OptionError, ParameterError
from dae_hybrid.numeric_input import real_array, shown
from dae_hybrid.numerics.arrays import Array
from dae_hybrid.system.system import HybridSystem

Scale = Literal["linear", "log", "logit"]
SCALES = ("linear", "log", "logit")
Bounds = Mapping[str, tuple[ArrayLike | None, ArrayLike | None]]
Priors = Mapping[str, tuple[ArrayLike, ArrayLike]]
#: share of the interval between the bounds of a logit scale that starts leave free on each side
EDGE = 1e-3


@dataclass(frozen=True)
class Owner:
    """The system and the name of an experiment, and the names whose values it fixes."""

    system: HybridSystem
    name: str
    fixed: frozenset[str]


@dataclass(frozen=True, eq=False)
class FreeParameters:
    """The vector of free parameters, in natural values q or in scaled values s = scale(q).

    Attributes
    ----------
    labels : tuple of str
        Names; ``k[0]`` for entries of vectors, ``k(name)`` for the own value of an experiment.
    start, lower, upper : ndarray, shape (n,)
        Natural values.
    scales : tuple of str
        Scale of every entry.
    prior_mean, prior_sd : ndarray, shape (n,)
        Normal priors of the scaled values; infinite standard deviations where there is none.
    places : tuple of pair of int arrays
        For every experiment, indices in the parameters of its system and in this vector.
    """

    labels: tuple[str, ...]
    start: Array
    lower: Array
    upper: Array
    scales: tuple[Scale, ...]
    prior_mean: Array
    prior_sd: Array
    places: tuple[tuple[NDArray[np.intp], NDArray[np.intp]], ...]

    @property
    def size(self) -> int:
        """Number of free parameters."""
        return len(self.labels)

    @property
    def has_priors(self) -> bool:
        """Whether any entry has a prior."""
        return bool(np.isfinite(self.prior_sd).any())

    def _of_scale(self, scale: Scale) -> NDArray[np.intp]:
        return np.flatnonzero([own == scale for own in self.scales])

    def scaled(self, q: Array) -> Array:
        """Scaled values of natural ones."""
        s = np.array(q, dtype=float)
        log, logit = self._of_scale("log"), self._of_scale("logit")
        with np.errstate(divide="ignore", invalid="ignore"):
            s[log] = np.log(s[log])
            s[logit] = np.log((s[logit] - self.lower[logit]) / (self.upper[logit] - s[logit]))
        return s

    def natural(self, s: Array) -> Array:
        """Natural values of scaled ones, within the bounds."""
        q = np.array(s, dtype=float)
        log, logit = self._of_scale("log"), self._of_scale("logit")
        with np.errstate(over="ignore"):
            q[log] = np.exp(q[log])
            q[logit] = self.lower[logit] + (self.upper[logit] - self.lower[logit]) / (1 + np.exp(-q[logit]))
        return np.clip(q, self.lower, self.upper)

    def slope(self, q: Array) -> Array:
        """dq/ds at natural values."""
        found = np.ones(self.size)
        log, logit = self._of_scale("log"), self._of_scale("logit")
        found[log] = q[log]
        low, high = self.lower[logit], self.upper[logit]
        found[logit] = (q[logit] - low) * (high - q[logit]) / (high - low)
        return found

    @property
    def scaled_bounds(self) -> tuple[Array, Array]:
        """Bounds of the scaled values."""
        return self.scaled(self.lower), self.scaled(self.upper)

    @property
    def sampled_bounds(self) -> tuple[Array, Array]:
        """Bounds of scaled values for random starts: within those of a logit scale."""
        width = np.where([scale == "logit" for scale in self.scales], EDGE * (self.upper - self.lower), 0.0)
        width = np.where(np.isfinite(width), width, 0.0)
        return self.scaled(self.lower + width), self.scaled(self.upper - width)

    def at(self, start: Array) -> FreeParameters:
        """The same parameters with another start."""
        return replace(self, start=start)

    def index(self, label: str) -> int:
        """Place of a label.

        Raises
        ------
        ParameterError
            It is no free parameter.
        """
        if label not in self.labels:
            raise ParameterError(
                f"{label!r} is no free parameter of this fit.", remedy=f"Those are {', '.join(self.labels)}."
            )
        return self.labels.index(label)


def free_parameters(
    owners: Sequence[Owner],
    free: str | Sequence[str] | Mapping[str, ArrayLike],
    local: Sequence[str],
    bounds: Bounds,
    scale: Scale | Mapping[str, Scale],
    priors: Priors,
    fixed: Mapping[str, ArrayLike],
) -> FreeParameters:
    """Check the free parameters of a fit and lay them out.

    Raises
    ------
    ParameterError
        A name is unknown, has a fixed value as well, or its start does not suit its bounds or scale.
    OptionError
        A scale is unknown.
    """
    names = [free] if isinstance(free, str) else list(free)
    starts = free if isinstance(free, Mapping) else dict.fromkeys(names)
    if not names or len(set(names)) < len(names):
        raise ParameterError(f"free names the parameters to be estimated, each once, got {shown(free)}.")
    for what, given in (("local", local), ("bounds", bounds), ("priors", priors)):
        _refuse_unknown(what, given, names)
    if isinstance(scale, Mapping):
        _refuse_unknown("scale", scale, names)
    blocks, offset = [], 0
    places: list[tuple[list[int], list[int]]] = [([], []) for _ in owners]
    for name in names:
        users = [i for i, owner in enumerate(owners) if name in owner.system.parameters]
        if not users:
            owners[0].system.parameter_indices(name)  # raises with the names
        _refuse_fixed(name, owners, users, fixed)
        for group in [[i] for i in users] if name in local else [users]:
            first = owners[group[0]]
            block = _block(name, first, starts[name], bounds.get(name), _scale_of(name, scale), priors.get(name))
            suffix = f"({first.name})" if name in local else ""
            blocks.append(replace(block, labels=tuple(f"{label}{suffix}" for label in block.labels)))
            for i in group:
                own = owners[i].system.parameter_indices(name)
                if len(own) != block.size:
                    raise ParameterError(f"Parameter '{name}' has {len(own)} entries in experiment {owners[i].name}.")
                places[i][0].extend(own)
                places[i][1].extend(range(offset, offset + block.size))
            offset += block.size
    return FreeParameters(
        labels=tuple(label for block in blocks for label in block.labels),
        scales=tuple(own for block in blocks for own in block.scales),
        places=tuple((np.array(own, np.intp), np.array(of, np.intp)) for own, of in places),
        **{
            field: np.concatenate([getattr(block, field) for block in blocks])
            for field in ("start", "lower", "upper", "prior_mean", "prior_sd")
        },
    )


def _block(
    name: str, owner: Owner, start: ArrayLike | None, bounds: tuple[Any, Any] | None, scale: Scale,
    prior: tuple[Any, Any] | None,
) -> FreeParameters:  # fmt: skip
    """The entries of one parameter."""
    part, layout = owner.system.parameters[name], owner.system.parameters
    size = part.stop - part.start
    lower, upper = _pair("bounds", name, (None, None) if bounds is None else bounds, size, (-np.inf, np.inf))
    lower = np.maximum(lower, 0.0) if scale == "log" else lower
    found = FreeParameters(
        layout.labels()[part], _entries("start", name, owner.system.nominal[part] if start is None else start, size),
        lower, upper, (scale,) * size, np.zeros(size), np.full(size, np.inf), (),
    )  # fmt: skip
    if not (lower < upper).all():
        raise ParameterError(f"bounds of '{name}' must increase, got {shown(bounds)}.")
    if scale == "logit" and not np.isfinite([lower, upper]).all():
        raise ParameterError(f"'{name}' has the scale 'logit', which needs finite bounds.")
    inside = (found.start >= lower) & (found.start <= upper)
    if not inside.all():
        raise ParameterError(
            f"The start of '{name}' is {found.start[~inside][0]:g}, outside its bounds.",
            remedy="free={'name': start} sets starts; by default they are the nominal values.",
        )
    if scale == "log" and not (found.start > 0).all():
        raise ParameterError(f"'{name}' has the scale 'log', which needs a positive start.")
    if scale == "logit":
        width = EDGE * (upper - lower)
        found = found.at(np.clip(found.start, lower + width, upper - width))
    if prior is None:
        return found
    mean, sd = _pair("priors", name, prior, size, (np.nan, np.nan))
    mean = found.scaled(mean)
    if not (np.isfinite(mean).all() and (sd > 0).all() and np.isfinite(sd).all()):
        raise ParameterError(
            f"The prior of '{name}' needs a mean within the scale '{scale}' and a positive sd, got {shown(prior)}."
        )
    return replace(found, prior_mean=mean, prior_sd=sd)


def _scale_of(name: str, scale: Scale | Mapping[str, Scale]) -> Scale:
    own = scale.get(name, "linear") if isinstance(scale, Mapping) else scale
    if own not in SCALES:
        raise OptionError(f"The scale of '{name}' must be 'linear', 'log' or 'logit', got {shown(own)}.")
    return own


def _pair(what: str, name: str, given: Any, size: int, default: tuple[float, float]) -> tuple[Array, Array]:
    try:
        first, second = given
    except (TypeError, ValueError):
        raise ParameterError(f"{what} of '{name}' must be a pair, got {shown(given)}.") from None
    one, other = (d if v is None else v for v, d in zip((first, second), default, strict=True))
    return _entries(what, name, one, size), _entries(what, name, other, size)


def _entries(what: str, name: str, given: ArrayLike, size: int) -> Array:
    try:
        found = np.broadcast_to(real_array(given), (size,)).copy()
    except ValueError as reason:
        raise ParameterError(f"{what} of '{name}' needs {size} numbers: {reason}.") from None
    if np.isnan(found).any() or (what == "start" and not np.isfinite(found).all()):
        raise ParameterError(f"{what} of '{name}' must be finite, got {shown(given)}.")
    return found


def _refuse_unknown(what: str, given: Any, names: Sequence[str]) -> None:
    for name in given:
        if name not in names:
            raise ParameterError(f"{what}: {name!r} is no free parameter.", remedy=f"Free: {', '.join(names)}.")


def _refuse_fixed(name: str, owners: Sequence[Owner], users: Sequence[int], fixed: Mapping[str, ArrayLike]) -> None:
    for i in users:
        if any(key.partition("[")[0] == name for key in (*owners[i].fixed, *fixed)):
            raise ParameterError(
                f"Parameter '{name}' is free and has a fixed value in experiment {owners[i].name}.",
                remedy="Remove one of the two; local=['name'] gives every experiment a value of its own.",
            )
