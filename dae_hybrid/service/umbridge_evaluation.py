"""Carry out requests of UM-Bridge, in a worker process."""

from __future__ import annotations

import json
import math
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from dae_hybrid.cancellation import Cancelled
from dae_hybrid.errors import (
    ConsistencyError,
    DaeHybridError,
    DualityError,
    EventError,
    IntegrationError,
    ModelError,
    NonFiniteError,
    OptionError,
    ParameterError,
    StepLimitError,
    UnsupportedError,
)
from dae_hybrid.interface.output_map import OutputMap, directional
from dae_hybrid.interface.prepared import Prepared, prepare
from dae_hybrid.numerics.arrays import Array
from dae_hybrid.optimization.hessian import hessian
from dae_hybrid.service.encoding import json_bytes
from dae_hybrid.service.entries import at_path
from dae_hybrid.service.evaluation import Limits, arguments_of, loaded, supervised
from dae_hybrid.service.models import LoadedModel, ServedModel

#: maps that a worker keeps
MOST_MAPS = 32
#: failures of a run, and derivatives refused at a point: NaN if on_failure is "nan"
FAILURES = (IntegrationError, ConsistencyError, EventError, DualityError, ModelError)

_maps: OrderedDict[tuple[ServedModel, str, Limits], FunctionalMap | TimesMap] = OrderedDict()


class Refused(UnsupportedError):
    """A feature that the model does not have with this config."""


class FunctionalMap:
    """Functionals, flat and in order, as a function of chosen parameters."""

    def __init__(self, model: LoadedModel, config: dict[str, Any], limits: Limits) -> None:
        system = self.system = model.system
        chosen = config.pop("functional", None)
        self.names: list[str] = list(system.functionals.names) if chosen is None else chosen
        unknown = [name for name in self.names if name not in system.functionals.names]
        if unknown:
            raise at_path(
                ParameterError(
                    f"There is no functional {unknown[0]!r}.",
                    remedy=f"Functionals: {', '.join(system.functionals.names) or 'none'}.",
                ),
                "/config/functional",
            )
        if not self.names:
            raise at_path(ParameterError("The model has no functionals; outputs is required."), "/config/outputs")
        self.wrt, self.indices = _chosen(model, config)
        _, self.span, self.options = arguments_of(model, config, limits)
        self.nominal: Array = self.options.pop("parameters")
        sizes = dict(system.functionals.blocks)
        self.rows: dict[str, slice] = {}
        for name in self.names:
            begin = sum(sizes[own] for own in self.rows)
            self.rows[name] = slice(begin, begin + sizes[name])
        self.size = sum(sizes[name] for name in self.names)
        self._values = prepare(system, self.span, functional=self.names, **self.options)
        self._adjoints: dict[tuple[str, ...], Prepared] = {}

    def values(self, p: Array) -> Array:
        """The outputs, shape (size,)."""
        found = self._values(p).functionals
        return np.concatenate([np.atleast_1d(found[name]) for name in self.names])

    def gradient(self, p: Array, sens: Array) -> Array:
        """The gradient of sens . outputs."""
        names = tuple(name for name in self.names if sens[self.rows[name]].any())
        if not names:
            self.values(p)
            return np.zeros(len(self.indices))
        if names not in self._adjoints:
            if len(self._adjoints) >= MOST_MAPS:
                self._adjoints.clear()
            self._adjoints[names] = prepare(
                self.system, self.span, functional=names, derivatives="adjoint", wrt=self.wrt, **self.options
            )
        found, total = self._adjoints[names](p).gradient, np.zeros(len(self.indices))
        for name in names:
            for weight, row in zip(sens[self.rows[name]], np.atleast_2d(found[name]), strict=True):
                if weight:
                    total += weight * row
        return total

    def jacobian(self, p: Array, vec: Array) -> Array:
        """The derivative of the outputs along a direction."""
        if not vec.any():
            self.values(p)
            return np.zeros(self.size)
        found = directional(self.system, self.span, p, self.indices, vec, **self.options).gradient
        return np.concatenate([found[name][:, 0] for name in self.names])

    def hessian(self, p: Array, sens: Array, vec: Array) -> Array:
        """The Hessian of sens . outputs times a vector."""
        total = np.zeros(len(self.indices))
        for name in self.names:
            weights = sens[self.rows[name]]
            if weights.any():
                found = hessian(self.system, self.span, name, wrt=self.wrt, parameters=p, **self.options)
                matrices = found.matrix.reshape(len(weights), len(vec), len(vec))
                total += np.einsum("k,kij,j->i", weights, matrices, vec)
        return total


class TimesMap:
    """Variables at times, row by row, as a function of chosen parameters."""

    def __init__(self, model: LoadedModel, config: dict[str, Any], limits: Limits) -> None:
        if "functional" in config:
            raise at_path(OptionError("functional and outputs exclude each other."), "/config/functional")
        outputs = config.pop("outputs")
        self.wrt, self.indices = _chosen(model, config)
        _, span, options = arguments_of(model, config, limits)
        self.nominal: Array = options.pop("parameters")
        self._map = OutputMap(model.system, span, outputs["t_eval"], outputs["variables"], wrt=self.wrt, **options)
        self.size = int(np.prod(self._map.shape))
        if self.size > limits.max_outputs:
            raise at_path(
                OptionError(f"outputs has {self.size} numbers; at most {limits.max_outputs} are allowed."),
                "/config/outputs",
            )

    def values(self, p: Array) -> Array:
        """The outputs, shape (size,)."""
        return self._map.values(p).ravel()

    def gradient(self, p: Array, sens: Array) -> Array:
        """The gradient of sens . outputs."""
        return self._map.vjp(p, sens.reshape(self._map.shape))

    def jacobian(self, p: Array, vec: Array) -> Array:
        """The derivative of the outputs along a direction."""
        return self._map.jvp(p, vec)[1].ravel()

    def hessian(self, *_: Array) -> Array:
        """Not available."""
        raise Refused("ApplyHessian is available for functionals, not for outputs at times.")


def _chosen(model: LoadedModel, config: dict[str, Any]) -> tuple[list[str] | None, list[int]]:
    """Names and indices of the inputs, in the order of the config."""
    names = config.pop("parameters", None)
    try:
        indices = list(model.system.parameter_indices(names))
    except ParameterError as error:
        raise at_path(error, "/config/parameters") from None
    if not indices:
        raise at_path(ParameterError("The model has no parameters."), "/config/parameters")
    return names, indices


def _map_of(served: ServedModel, config: dict[str, Any], limits: Limits) -> FunctionalMap | TimesMap:
    key = served, json.dumps(config, sort_keys=True), limits
    if key not in _maps:
        kind: Callable[..., FunctionalMap | TimesMap] = TimesMap if "outputs" in config else FunctionalMap
        try:
            _maps[key] = kind(loaded(served), dict(config), limits)
        except DaeHybridError as error:
            raise error if hasattr(error, "path") else at_path(error, "/config") from None
        while len(_maps) > MOST_MAPS:
            _maps.popitem(last=False)
    _maps.move_to_end(key)
    return _maps[key]


def carry_out(
    served: ServedModel, action: str, call: Mapping[str, Any], limits: Limits, token: str
) -> tuple[bytes, list[str]] | None:
    """Carry out a request.

    Parameters
    ----------
    action : {"InputSizes", "OutputSizes", "Evaluate", "Gradient", "ApplyJacobian", "ApplyHessian"}
    call : mapping
        The body of the request, checked by `dae_hybrid.service.umbridge_requests`.
    token : str
        Cancels the run.

    Returns
    -------
    (bytes, list of str) or None
        The response and the warnings; None if the run was cancelled.

    Raises
    ------
    DaeHybridError
        With the attribute `path` if an entry of the request is at fault.
    """
    config = dict(call.get("config") or {})
    on_failure = config.pop("on_failure", "error")
    try:
        with supervised(token) as seen:
            own = _map_of(served, config, limits)
            if action == "InputSizes":
                return json_bytes({"inputSizes": [len(own.indices)]}), []
            if action == "OutputSizes":
                return json_bytes({"outputSizes": [own.size]}), []
            is_own_limit = config.get("max_steps", math.inf) > limits.max_steps
            found = _numbers(own, action, call, on_failure == "nan", is_own_limit)
            content: Any = {"output": [found] if action == "Evaluate" else found}
            texts = [str(warning.message) for warning in seen]
            # the protocol has no number that does not exist: its Python client reads the literal NaN
            return (json_bytes if np.isfinite(found).all() else _with_nan)(content), texts
    except Cancelled:
        return None


def _with_nan(content: Mapping[str, Any]) -> bytes:
    return json.dumps(content, default=np.ndarray.tolist).encode()


def _numbers(
    own: FunctionalMap | TimesMap, action: str, call: Mapping[str, Any], is_nan_legal: bool, is_own_limit: bool
) -> Array:
    """Carry out an action; `is_own_limit` if the limit of steps is that of the service, whose excess is no failure."""
    n = len(own.indices)
    p = own.nominal.copy()
    p[own.indices] = _block(call["input"][0], n, "/input/0")
    sens = _block(call["sens"], own.size, "/sens") if "sens" in call else np.zeros(0)
    vec = _block(call["vec"], n, "/vec") if "vec" in call else np.zeros(0)
    size = own.size if action in ("Evaluate", "ApplyJacobian") else n
    try:
        if action == "Evaluate":
            found = own.values(p)
        elif action == "Gradient":
            found = own.gradient(p, sens)
        elif action == "ApplyJacobian":
            found = own.jacobian(p, vec)
        else:
            found = own.hessian(p, sens, vec)
        if not np.isfinite(found).all():
            raise NonFiniteError(f"{action}: entry {np.argmin(np.isfinite(found))} of the output is not finite.")
        return np.ascontiguousarray(found)
    except FAILURES as error:
        if not is_nan_legal or (isinstance(error, StepLimitError) and is_own_limit):
            raise
        error.release()
        return np.full(size, np.nan)


def _block(numbers: list[float], size: int, path: str) -> Array:
    if len(numbers) != size:
        raise at_path(ParameterError(f"{size} numbers are needed, got {len(numbers)}."), path)
    return np.array(numbers, dtype=float)
