"""The arrays of an ensemble's results: their names, columns and labels."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dae_hybrid.errors import OptionError
from dae_hybrid.interface.batch import Batch, variable_sizes
from dae_hybrid.interface.prepared_case import CheckedCall
from dae_hybrid.layout import Layout
from dae_hybrid.numeric_input import shown
from dae_hybrid.numerics.arrays import Array

#: columns of the array "counts"
STATUS, N_EVENTS, N_STEPS, DIGEST, NATIVE = range(5)
COUNTS = ("status", "n_events", "n_steps", "digest", "native")
#: values of the column "status"
WAITING, SUCCEEDED, FAILED = range(3)
_LAYOUTS, _LABELS = ("functionals", "variables", "outputs"), ("parameters", "starts", "wrt")
_PLAIN = ("model", "units", "descriptions", "n_t")


class ArraySpec(NamedTuple):
    """Shape of one run's part of an array, its type, its value before the run, and the names of its dimensions."""

    shape: tuple[int, ...]
    dtype: str
    fill: float
    dimensions: tuple[str, ...]

    @property
    def bytes_per_run(self) -> int:
        """Bytes of one run."""
        return int(np.prod(self.shape)) * np.dtype(self.dtype).itemsize


@dataclass(frozen=True)
class ResultLayout:
    """Labels of the results of a call, enough to read them without its model.

    Attributes
    ----------
    model : str
        Its name.
    units, descriptions : mapping of str to str
        Those of variables and parameters that have one.
    parameters, starts : tuple of str
        Labels of the parameters, and of the initial values that differ between the runs.
    functionals : Layout
        Reported functionals.
    wrt : tuple of str or None
        Labels of the parameters of the gradients; None without gradients.
    variables : Layout
        Variables and memory at the final times.
    outputs : Layout
        Variables, memory and signals at the output times.
    n_t : int
        Number of output times.
    """

    model: str
    units: Mapping[str, str]
    descriptions: Mapping[str, str]
    parameters: tuple[str, ...]
    starts: tuple[str, ...]
    functionals: Layout
    wrt: tuple[str, ...] | None
    variables: Layout
    outputs: Layout
    n_t: int

    @classmethod
    def of(cls, case: CheckedCall, outputs: str | Sequence[str] | None) -> ResultLayout:
        """Return the layout of the results of a call.

        Raises
        ------
        OptionError
            `outputs` does not name variables, memory or signals, each once, or there are no output times.
        """
        system = case.system
        variables = variable_sizes(system)
        n_t = 0 if case.setup.t_eval is None else case.setup.t_eval.size
        if outputs is not None and not n_t:
            raise OptionError("outputs= selects variables at the times t_eval=, which is not given.")
        legal = variables | {signal.data.name: 1 for signal in system.signals}
        names = _names(variables if outputs is None else outputs)
        if names is None or len(set(names)) < len(names) or not set(names) <= set(legal):
            raise OptionError(
                f"outputs must name variables, memory or signals, each once, got {shown(outputs)}.",
                remedy=f"They are {', '.join(legal)}.",
            )
        labels = system.parameters.labels()
        return cls(
            system.name,
            dict(system.units),
            dict(system.descriptions),
            tuple(labels),
            () if case.starts is None else tuple(case.starts.layout.labels()),
            Layout.of((name, part.stop - part.start) for name, part in case.components.items()),
            tuple(labels[i] for i in case.indices) if case.analysis is not None else None,
            Layout.of(variables.items()),
            Layout.of((name, legal[name]) for name in names if n_t),
            n_t,
        )

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> ResultLayout:
        """Restore a layout from the output of `to_json`."""
        layouts: dict[str, Any] = {name: Layout.of((str(n), size) for n, size in content[name]) for name in _LAYOUTS}
        labels: dict[str, Any] = {name: None if content[name] is None else tuple(content[name]) for name in _LABELS}
        return cls(**layouts, **labels, **{name: content[name] for name in _PLAIN})

    def to_json(self) -> dict[str, Any]:
        """Return the layout as values that JSON can hold."""
        return vars(self) | {name: getattr(self, name).blocks for name in _LAYOUTS}

    @property
    def given(self) -> tuple[str, ...]:
        """Labels of the inputs of a run: parameters, then initial values."""
        return (*self.parameters, *(f"{label}(0)" for label in self.starts))

    @property
    def arrays(self) -> dict[str, ArraySpec]:
        """The arrays of results, in the order in which they are written: a run that has a status has all results."""
        n_c = self.functionals.size
        found = {
            "values": ArraySpec((n_c,), "f8", np.nan, ("component",)),
            "final": ArraySpec((1 + self.variables.size,), "f8", np.nan, ("variable",)),
        }
        if self.wrt is not None:
            found["gradients"] = ArraySpec((n_c, len(self.wrt)), "f8", np.nan, ("component", "parameter"))
        if self.n_t:
            found["outputs"] = ArraySpec((self.n_t, self.outputs.size), "f8", np.nan, ("t", "output"))
        found["counts"] = ArraySpec((len(COUNTS),), "i8", 0, ("count",))
        return {name: spec for name, spec in found.items() if spec.bytes_per_run}

    def empty_rows(self, count: int) -> dict[str, Array]:
        """Return rows of the arrays before their runs."""
        return {name: np.full((count, *spec.shape), spec.fill, spec.dtype) for name, spec in self.arrays.items()}

    @property
    def bytes_per_run(self) -> int:
        """Bytes of the results of one run."""
        return sum(spec.bytes_per_run for spec in self.arrays.values())

    def rows(self, found: Batch) -> dict[str, Array]:
        """Return the results of a batch as rows of the arrays."""
        status = np.where(found.ok, SUCCEEDED, FAILED)
        final = [found.t_end[:, None], *(_columns(found.final[name], 1) for name in self.variables.names)]
        rows = {
            "values": found.values,
            "gradients": found.gradients,
            "final": np.hstack(final),
            "counts": np.column_stack((status, found.n_events, found.n_steps, found.digest, found.native)),
        }
        if self.outputs.size:
            rows["outputs"] = np.concatenate([_columns(found[name], 2) for name in self.outputs.names], axis=2)
        return {name: rows[name].astype(spec.dtype, copy=False) for name, spec in self.arrays.items()}


def _names(given: Any) -> list[str] | None:
    """Return a name or several ones as a list; None if they are something else."""
    names = [given] if isinstance(given, str) or not isinstance(given, Iterable) else list(given)
    return names if all(isinstance(name, str) for name in names) else None


def meaning(counts: NDArray[Any]) -> dict[str, NDArray[Any]]:
    """Return what rows of the array "counts" say, by name."""
    return {
        "ok": counts[:, STATUS] == SUCCEEDED,
        "done": counts[:, STATUS] != WAITING,
        "n_events": counts[:, N_EVENTS],
        "n_steps": counts[:, N_STEPS],
        "digest": counts[:, DIGEST],
        "native": counts[:, NATIVE] != 0,
    }


def _columns(values: Array, axis: int) -> Array:
    """Restore the axis of the size, which is missing for a scalar."""
    return values[..., None] if values.ndim == axis else values
