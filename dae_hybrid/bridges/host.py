"""A functional, or outputs at times, with derivatives, for arrays of parameter sets: the NumPy side of the bridges."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from threading import Lock
from typing import Any, Literal, Unpack, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dae_hybrid.codegen.compiler import cores
from dae_hybrid.errors import DaeHybridError, OptionError, ParameterError
from dae_hybrid.interface.api import RunOptions
from dae_hybrid.interface.batch import Batch, batch
from dae_hybrid.interface.crews import share_out
from dae_hybrid.interface.output_map import OutputMap
from dae_hybrid.interface.parameter_sets import ParameterTable
from dae_hybrid.interface.runs import Parameters
from dae_hybrid.interface.starts import parted
from dae_hybrid.numeric_input import real_array, shown
from dae_hybrid.numerics.arrays import Array
from dae_hybrid.statement.declarations import Mode
from dae_hybrid.system.system import HybridSystem, check_built

OnFailure = Literal["nan", "raise"]
#: refusal of a derivative of a derivative
SECOND = "This derivative is a second derivative of a hybrid system, and those are not implemented."
type Errors = tuple[DaeHybridError | None, ...]


class BridgeArguments(RunOptions, total=False):
    """Keyword arguments of a bridge; see `dae_hybrid.bridges.jax.reverse_mode`."""

    functional: str | None
    outputs: str | Sequence[str] | None
    t_eval: ArrayLike | None
    wrt: str | Sequence[str] | None
    parameters: Parameters
    x0: ParameterTable
    on_failure: OnFailure
    workers: int | None
    adapter: str
    strict: bool


class HostFunction:
    """A functional, or outputs at times, as a function of parameters, with derivatives; for one point or for many.

    Arguments have any number of leading axes; each point is a run, and all runs of a call are made on all cores.
    The arguments of the constructor are those of `dae_hybrid.bridges.jax.reverse_mode`.

    Attributes
    ----------
    size : int
        Number of inputs n_wrt, the entries of the parameters `wrt`.
    shape : tuple of int
        Shape of a result: ``()``, or ``(k,)`` of a vector functional, or ``(n_t, n_outputs)``.
    wrt : tuple of str
        Names of the inputs, one per entry.
    last_errors : tuple of DaeHybridError or None
        The error of each run of the latest call, in order of the leading axes, flattened; None for a successful run.
    statistics : dict of str to int
        Numbers of runs and of failed runs so far: ``runs``, ``failed``.

    Examples
    --------
    >>> import numpy as np
    >>> from dae_hybrid.bridges.host import HostFunction
    >>> from dae_hybrid.problems import hybrid_ode
    >>> host = HostFunction(hybrid_ode.system(), (0, 5), functional="G", rtol=1e-9)
    >>> values, jacobians = host.linearize(np.array([[2.9], [3.0]]))
    >>> values.round(4), jacobians.round(4).tolist()
    (array([20.0291, 19.6144]), [[-2.312], [-0.3747]])
    """

    def __init__(
        self,
        system: HybridSystem,
        t_span: Sequence[float],
        *,
        functional: str | None = None,
        outputs: str | Sequence[str] | None = None,
        t_eval: ArrayLike | None = None,
        wrt: str | Sequence[str] | None = None,
        parameters: Parameters = None,
        x0: ParameterTable = None,
        start_mode: Mode | str | None = None,
        on_failure: OnFailure = "nan",
        workers: int | None = None,
        adapter: str = "sundials",
        strict: bool = True,
        **options: Unpack[RunOptions],
    ) -> None:
        check_built(system)
        if on_failure not in ("nan", "raise"):
            raise OptionError(f"on_failure must be 'nan' or 'raise', got {on_failure!r}.")
        if (outputs is None) != (t_eval is None):
            raise OptionError("outputs= and t_eval= belong together: variables, and the times at which they are taken.")
        if outputs is not None and functional is not None:
            raise OptionError("Either functional= or outputs= at t_eval= is the result, not both.")
        system, self._start = parted(system, x0, start_mode, wrt)
        self._system, self._span, self._raises = system, t_span, on_failure == "raise"
        self._indices = list(system.parameter_indices(wrt))
        self._fixed = system.parameter_vector(parameters)
        self._workers = cores() if workers is None else workers
        self._call: dict[str, Any] = {"adapter": adapter, "strict": strict, "workers": workers, **options}
        self._wrt = wrt if wrt is None or isinstance(wrt, str) else list(wrt)
        self._map: OutputMap | None = None
        if outputs is not None:
            self._names = _names(outputs)
            self._map = OutputMap(
                system, t_span, np.asarray(t_eval), self._names, wrt=self._wrt, adapter=adapter, strict=strict,
                **self._start, **options,
            )  # fmt: skip
            self.shape: tuple[int, ...] = self._map.shape
        else:
            self._name = system.functional_name(functional)
            part = system.functionals[self._name]
            self.shape = () if part.stop - part.start == 1 else (part.stop - part.start,)
        analysis = "adjoint" if outputs is None else None
        self._batch(np.zeros((0, self._fixed.size)), gradient=analysis)  # no runs: checks the other arguments
        labels = system.parameters.labels()
        self.wrt = tuple(labels[i] for i in self._indices)
        self.size = len(self.wrt)
        self.last_errors: Errors = ()
        self.statistics = {"runs": 0, "failed": 0}
        self._lock = Lock()

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_lock"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _lock=Lock())

    @property
    def has_outputs(self) -> bool:
        """Whether the result consists of outputs at times."""
        return self._map is not None

    def blocks(self) -> dict[str, int]:
        """Names of the parameters `wrt` in the order of the inputs, and their numbers of entries."""
        layout = self._system.parameters
        sizes = {name: layout[name].stop - layout[name].start for name in layout.names}
        chosen = layout.names if self._wrt is None else [self._wrt] if isinstance(self._wrt, str) else self._wrt
        return {name: sizes[name] for name in chosen}

    # -- functions of inputs (..., n_wrt) ------------------------------------------------------------------------

    def values(self, inputs: ArrayLike) -> Array:
        """Return the values, shape (..., *shape).

        Raises
        ------
        ParameterError
            The inputs do not have the shape (..., n_wrt).
        DaeHybridError
            The error of a run, with ``on_failure="raise"``. Otherwise its values are NaN.
        """
        rows, leading = self._rows(inputs)
        found, errors = self._values(rows)
        self._note(errors)
        return found.reshape((*leading, *self.shape))

    def linearize(self, inputs: ArrayLike) -> tuple[Array, Array]:
        """Return the values of a functional and their derivatives, shape (..., *shape, n_wrt), by adjoint analysis.

        A derivative that does not exist is NaN; its value is that of `values`. Errors are those of `values`.
        """
        rows, leading = self._rows(inputs)
        sets = self._sets(rows)
        found = self._batch(sets, gradient="adjoint")
        values, by_p = found.functionals[self._name].copy(), found.gradient[self._name]
        self._note(found.errors)
        if not found.ok.all():
            values[~found.ok] = self._batch(sets[~found.ok]).functionals[self._name]
        return values.reshape((*leading, *self.shape)), by_p.reshape((*leading, *self.shape, self.size))

    def jvp(self, inputs: ArrayLike, tangents: ArrayLike) -> Array:
        """Return the derivatives of the values along tangents (..., n_wrt), shape (..., *shape).

        Leading axes of inputs and tangents are broadcast. Outputs are differentiated by forward analysis along the
        tangent, or once along all n_wrt inputs if a point has more than (n_wrt + 1) / 2 tangents. Functionals are
        differentiated by forward analysis or, if there are many inputs, by adjoint analysis, once for each point.
        Errors are those of `values`.
        """
        p, v = real_array(inputs), real_array(tangents)
        rows, leading = self._rows(np.broadcast_to(p, np.broadcast_shapes(p.shape, v.shape)))
        along = np.broadcast_to(v, (*leading, self.size)).reshape(len(rows), self.size)
        if self._map is None:
            by_p, errors = self._by_p(rows, True)
            tangents_out = np.einsum("nkp,np->nk", by_p, along)
        else:
            tangents_out, errors = self._pushed(rows, along)
        self._note(errors)
        return tangents_out.reshape((*leading, *self.shape))

    def vjp(self, inputs: ArrayLike, cotangents: ArrayLike) -> Array:
        """Return the derivatives of sum(cotangents * values), shape (..., n_wrt), by adjoint analysis.

        Leading axes of the inputs and of the cotangents are broadcast. A run whose cotangents are all zero is not made
        and contributes zero, so that a loss may leave out runs that have failed. Errors are those of `values`.
        """
        p, ct = real_array(inputs), real_array(cotangents)
        inner = ct.ndim - len(self.shape)
        if p.ndim == 0 or inner < 0 or ct.shape[inner:] != self.shape:
            raise ParameterError(f"Cotangents: an array of shape (..., {self.shape}) is needed, got {ct.shape}.")
        leading = np.broadcast_shapes(p.shape[:-1], ct.shape[:inner])
        rows, _ = self._rows(np.broadcast_to(p, (*leading, p.shape[-1])))
        weights = np.broadcast_to(ct, (*leading, *self.shape)).reshape(len(rows), *self.shape)
        counts = weights.reshape(len(rows), -1).any(axis=1)
        found = np.zeros((len(rows), self.size))
        errors: list[DaeHybridError | None] = [None] * len(rows)
        some = np.flatnonzero(counts)
        found[some], own = self._pulled(rows[some], weights[some])
        for i, error in zip(some.tolist(), own, strict=True):
            errors[i] = error
        self._note(tuple(errors))
        return found.reshape((*leading, self.size))

    # -- runs ----------------------------------------------------------------------------------------------------

    def _values(self, rows: Array) -> tuple[Array, Errors]:
        own = self._map
        if own is None:
            found = self._batch(self._sets(rows))
            return found.functionals[self._name], found.errors
        found = self._batch(self._sets(rows), t_eval=own.t)
        columns = [found[name] for name in self._names]
        values = np.concatenate([c[..., None] if c.ndim == 2 else c for c in columns], axis=2)
        errors = list(found.errors)
        for i in np.flatnonzero(~np.isfinite(values).all(axis=(1, 2))).tolist():  # all of a failed run is NaN
            values[i] = np.nan
            errors[i] = errors[i] or self._error(own.values, self._sets(rows[i]))
        return values, tuple(errors)

    def _pulled(self, rows: Array, weights: Array) -> tuple[Array, Errors]:
        """Derivatives (N, n_wrt) of weighted sums."""
        if self._map is None:
            by_p, errors = self._by_p(rows, "adjoint")
            return np.einsum("nk,nkp->np", weights.reshape(len(rows), by_p.shape[1]), by_p), errors
        gradients, run = np.full((len(rows), self.size), np.nan), self._map.vjp

        def one(i: int, p: Array) -> None:
            gradients[i] = run(p, weights[i])

        return gradients, self._each(rows, one)

    def _by_p(self, rows: Array, gradient: Literal["adjoint", True]) -> tuple[Array, Errors]:
        """Derivatives (N, k, n_wrt) of a functional; equal rows are one run."""
        points, point = _distinct(rows)
        found, k = self._batch(self._sets(points), gradient=gradient), self.shape[0] if self.shape else 1
        by_p = found.gradient[self._name].reshape(len(points), k, self.size)
        return by_p[point], tuple(found.errors[i] for i in point.tolist())

    def _pushed(self, rows: Array, along: Array) -> tuple[Array, Errors]:
        """Derivatives (N, n_t, n_outputs) of outputs along the rows of `along`."""
        own, (points, point) = cast(OutputMap, self._map), _distinct(rows)
        found = np.full((len(rows), *self.shape), np.nan)
        errors: list[DaeHybridError | None] = [None] * len(rows)
        # a run with n directions integrates 1 + n systems, n runs with one direction integrate 2 n
        many = np.flatnonzero(2 * np.bincount(point, minlength=len(points)) > 1 + self.size)
        jacobians, place = np.empty((len(many), *self.shape, self.size)), np.full(len(points), -1)

        def once(k: int, p: Array) -> None:
            jacobians[k] = own.derivatives(p)[1]

        for k, error in enumerate(self._each(points[many], once)):
            place[many[k]] = k if error is None else -1
        known = (place[point] >= 0) & np.isfinite(along).all(axis=1)
        found[known] = np.einsum("n...p,np->n...", jacobians[place[point[known]]], along[known])
        others = np.flatnonzero(~known)  # also where the Jacobian is refused: some of its directions may exist

        def one(k: int, p: Array) -> None:
            found[others[k]] = own.jvp(p, along[others[k]])[1]

        for k, error in enumerate(self._each(rows[others], one)):
            errors[others[k]] = error
        return found, tuple(errors)

    def _each(self, rows: Array, one: Callable[[int, Array], None]) -> Errors:
        """Make a single run of every row on threads; return their errors."""
        errors, sets = list[DaeHybridError | None]([None] * len(rows)), self._sets(rows)

        def some(begin: int, end: int) -> None:
            for i in range(begin, end):
                errors[i] = self._error(partial(one, i), sets[i])

        share_out(len(rows), [some] * max(1, min(self._workers, len(rows))), lambda: None)
        return tuple(errors)

    @staticmethod
    def _error(run: Callable[[Array], Any], p: Array) -> DaeHybridError | None:
        try:
            run(p)
        except DaeHybridError as error:
            error.release()
            return error
        return None

    def _batch(self, sets: Array, **more: Any) -> Batch:
        if more.get("gradient") is not None:
            more["wrt"] = self._wrt
        functional = None if self._map is not None else self._name
        return batch(
            self._system, self._span, parameters=sets, functional=functional, **self._start, **more, **self._call
        )

    # -- inputs and errors ---------------------------------------------------------------------------------------

    def _rows(self, inputs: ArrayLike) -> tuple[Array, tuple[int, ...]]:
        """Return inputs as rows, and the leading axes."""
        try:
            found = real_array(inputs)
        except ValueError as reason:
            raise ParameterError(f"Inputs {reason}.") from None
        if found.ndim == 0 or found.shape[-1] != len(self._indices):
            raise ParameterError(
                f"Inputs: an array of shape (..., {len(self._indices)}) is needed ({', '.join(self.wrt)}), got shape "
                f"{found.shape}."
            )
        return found.reshape(-1, found.shape[-1]), found.shape[:-1]

    def _sets(self, rows: Array) -> Array:
        """Return complete sets of parameters."""
        found = np.broadcast_to(self._fixed, (*rows.shape[:-1], self._fixed.size)).copy()
        found[..., self._indices] = rows
        return found

    def _note(self, errors: Errors) -> None:
        failed = [error for error in errors if error is not None]
        with self._lock:
            self.last_errors = errors
            self.statistics["runs"] += len(errors)
            self.statistics["failed"] += len(failed)
        if failed and self._raises:
            raise failed[0]


def _names(outputs: str | Sequence[str]) -> list[str]:
    found = [outputs] if isinstance(outputs, str) else list(outputs) if isinstance(outputs, Iterable) else [outputs]
    if not all(isinstance(name, str) for name in found):
        raise OptionError(f"outputs must be a name or a sequence of names, got {shown(outputs)}.")
    return found


def _distinct(rows: Array) -> tuple[Array, NDArray[np.intp]]:
    """Return the distinct rows, and the index of each row among them."""
    points, point = np.unique(rows, axis=0, return_inverse=True)
    return points, point.reshape(-1)


def by_name(given: Mapping[str, Any], blocks: Mapping[str, int]) -> list[Any]:
    """Return the entries of a mapping in the order of the inputs; each has the shape () or (size,).

    Raises
    ------
    ParameterError
        Names are missing or unknown, or a shape is wrong.
    """
    if set(given) != set(blocks):
        raise ParameterError(
            f"The inputs by name must be {', '.join(blocks)}; got {', '.join(map(str, given)) or 'none'}.",
            remedy="Choose the inputs by wrt=, and give fixed values of the others by parameters=.",
        )
    for name, size in blocks.items():
        shape = tuple(given[name].shape)
        if shape != (size,) and not (size == 1 and shape == ()):
            legal = "a number" if size == 1 else f"an array of shape ({size},)"
            raise ParameterError(
                f"Input {name!r}: {legal} is needed, got shape {shape}.",
                remedy="Map the function (vmap) over many points by name.",
            )
    return [given[name].reshape(-1) for name in blocks]


class BridgeFunction:
    """What the functions of all frameworks have in common."""

    def __init__(self, host: HostFunction) -> None:
        self._host = host
        self.shape, self.wrt = host.shape, host.wrt

    @property
    def last_errors(self) -> Errors:
        """The error of each run of the latest call or derivative, None for a successful run."""
        return self._host.last_errors

    @property
    def statistics(self) -> Mapping[str, int]:
        """Numbers of runs and of failed runs so far: ``runs``, ``failed``."""
        return dict(self._host.statistics)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {', '.join(self._host.blocks())}, result of shape {self.shape}>"
