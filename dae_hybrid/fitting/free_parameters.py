"""Free parameters of a fit: their labels, bounds, scales and priors, and their places in every experiment."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dae_hybrid.errors import ParameterError
from dae_hybrid.numeric_input import real_array, shown
from dae_hybrid.numerics.arrays import Array
from dae_hybrid.optimization.scaling import Bound, Scale, Scaling, bound_pair, scale_of
from dae_hybrid.system.system import HybridSystem

Priors = Mapping[str, tuple[ArrayLike, ArrayLike]]


@dataclass(frozen=True)
class Owner:
    """The system and the name of an experiment, and the names whose values it fixes."""

    system: HybridSystem
    name: str
    fixed: frozenset[str]


@dataclass(frozen=True, eq=False)
class FreeParameters(Scaling):
    """The vector of free parameters, in natural values q or in scaled values s.

    Attributes
    ----------
    labels : tuple of str
        Names; ``k[0]`` for entries of vectors, ``k(name)`` for the own value of an experiment.
    start : ndarray, shape (n,)
        Natural values.
    prior_mean, prior_sd : ndarray, shape (n,)
        Normal priors of the scaled values; infinite standard deviations where there is none.
    places : tuple of pair of int arrays
        For every experiment, indices in the parameters of its system and in this vector.
    """

    labels: tuple[str, ...]
    start: Array
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


def names_of(what: str, given: Any) -> list[str]:
    """Names given as one string, as a sequence, or as the keys of a mapping.

    Raises
    ------
    ParameterError
        They are something else.
    """
    names = [given] if isinstance(given, str) else given
    if not isinstance(names, Iterable) or not all(isinstance(name, str) for name in names):
        raise ParameterError(f"{what} must be a name or names of parameters, got {shown(given)}.")
    return list(names)


def free_parameters(
    owners: Sequence[Owner],
    free: str | Sequence[str] | Mapping[str, ArrayLike],
    local: Sequence[str],
    bounds: Mapping[str, Bound],
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
    names = names_of("free", free)
    starts = free if isinstance(free, Mapping) else dict.fromkeys(names)
    if not names or len(set(names)) < len(names):
        raise ParameterError(f"free names the parameters to be estimated, each once, got {shown(free)}.")
    for what, given in (("bounds", bounds), ("priors", priors)):
        if not isinstance(given, Mapping):
            raise ParameterError(f"{what} must be a mapping by the names of parameters, got {shown(given)}.")
    _refuse_unknown("local", local, names)
    _refuse_unknown("bounds", bounds, names)
    _refuse_unknown("priors", priors, names)
    if isinstance(scale, Mapping):
        _refuse_unknown("scale", scale, names)
    blocks, offset = [], 0
    places: list[tuple[list[int], list[int]]] = [([], []) for _ in owners]
    for name in names:
        users = [i for i, owner in enumerate(owners) if name in owner.system.parameters]
        if not users:
            legal = dict.fromkeys(n for owner in owners for n in owner.system.parameters.names)
            raise ParameterError(
                f"free: unknown parameter {name!r}.", remedy=f"Parameters, as a whole: {', '.join(legal) or 'none'}."
            )
        _refuse_fixed(name, owners, users, fixed)
        for group in [[i] for i in users] if name in local else [users]:
            first = owners[group[0]]
            block = _block(name, first, starts[name], bounds.get(name), scale, priors.get(name))
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
    name: str, owner: Owner, start: ArrayLike | None, bounds: Bound | None, scale: Scale | Mapping[str, Scale],
    prior: tuple[Any, Any] | None,
) -> FreeParameters:  # fmt: skip
    """The entries of one parameter."""
    part, layout = owner.system.parameters[name], owner.system.parameters
    size = part.stop - part.start
    lower, upper = bound_pair(f"bounds[{name!r}]", (None, None) if bounds is None else bounds, size)
    lower = np.maximum(lower, 0.0) if scale_of(name, scale) == "log" else lower
    if not (lower < upper).all():
        raise ParameterError(f"bounds of '{name}' must increase, got {shown(bounds)}.", remedy="Or do not estimate it.")
    scales, labels = (scale_of(name, scale),) * size, layout.labels()[part]
    start = _entries("start", name, owner.system.nominal[part] if start is None else start, size)
    start = Scaling(lower, upper, scales).checked_start(labels, start)
    found = FreeParameters(lower, upper, scales, labels, start, np.zeros(size), np.full(size, np.inf), ())
    if prior is None:
        return found
    mean, sd = _prior(name, prior, size)
    mean = found.scaled(mean)
    if not (np.isfinite(mean).all() and (sd > 0).all() and np.isfinite(sd).all()):
        raise ParameterError(
            f"The prior of '{name}' needs a mean within the scale '{scale}' and a positive sd, got {shown(prior)}."
        )
    return replace(found, prior_mean=mean, prior_sd=sd)


def _prior(name: str, given: Any, size: int) -> tuple[Array, Array]:
    try:
        mean, sd = given
    except (TypeError, ValueError):
        raise ParameterError(f"priors of '{name}' must be a pair (mean, sd), got {shown(given)}.") from None
    return _entries("prior", name, mean, size), _entries("prior", name, sd, size)


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
