"""A case: the checked arguments of a call that is repeated with different numbers, natively or by single calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import replace
from functools import cached_property
from threading import Lock
from typing import Any, Literal, cast

import numpy as np
from numpy.typing import ArrayLike

from dae_hybrid.cancellation import raise_if_cancelled
from dae_hybrid.conditions.amplification import LOOSER, difference, lost
from dae_hybrid.conditions.resolution import integrated
from dae_hybrid.conditions.sequences import relation_entries
from dae_hybrid.errors import DaeHybridError, OptionError, ParameterError
from dae_hybrid.interface import api
from dae_hybrid.interface.peaks import refuse_absent
from dae_hybrid.interface.runs import RunBuilder
from dae_hybrid.interface.start_values import Starts
from dae_hybrid.layout import Layout
from dae_hybrid.numerics.arrays import Array
from dae_hybrid.port.native_batch import Crew, NativeBatch, Outcomes, RunsMany
from dae_hybrid.sensitivity.results import ForwardSensitivity, Gradient
from dae_hybrid.system.schedule import Schedule
from dae_hybrid.system.system import HybridSystem
from dae_hybrid.system.timetable import Timetable
from dae_hybrid.trajectory.trajectory import Trajectory

Analysis = Literal["forward", "adjoint"]
#: largest number of idle crews kept with a system
MOST_IDLE = 16
_resting = Lock()
#: result of a single call; for adjoint analysis a gradient per functional
type Single = Trajectory | ForwardSensitivity | dict[str, Gradient]


class CheckedCall:
    """Checked arguments shared by all runs.

    `names` are the reported functionals, `components` their components among the reported ones.
    """

    def __init__(
        self, system: HybridSystem, t_span: Sequence[float], functional: str | Sequence[str] | None,
        analysis: Analysis | None, wrt: str | Sequence[str] | None, t_eval: ArrayLike | None, adapter: str,
        strict: bool, duality: bool | float, options: Mapping[str, Any], starts: Starts | None = None,
    ) -> None:  # fmt: skip
        if "keep" in options:
            raise OptionError(
                "keep= is an option of single calls: batches and prepared calls keep functionals, gradients, values at "
                "t_eval= and those at the end.",
                remedy="Pass t_eval= for outputs; single(i) of a batch, or single of a run, returns all of one run.",
            )
        self._given: dict[str, Any] = {
            "system": system, "t_span": t_span, "functional": functional, "analysis": analysis, "wrt": wrt,
            "t_eval": t_eval, "adapter": adapter, "strict": strict, "duality": duality, "options": options,
        }  # fmt: skip
        self.setup = RunBuilder(system, t_span, None, t_eval, adapter, options, analysis or "simulate")
        self.system, self.analysis, self.starts = self.setup.system, analysis, starts
        self.setup.conditions(strict=strict)
        self.setup.allowed(duality)
        self.names = functional_names(system, functional)
        if analysis is not None and not self.names:
            raise ParameterError(f"There is nothing to differentiate: model '{system.name}' has no functional.")
        if analysis is None and (wrt is not None or duality is not False):
            raise OptionError("wrt= and duality= are options of gradients, but no gradients were requested.")
        self.indices = system.parameter_indices(wrt) if analysis is not None else ()
        self._call: dict[str, Any] = {"t_eval": self.setup.t_eval, "adapter": adapter, **options}
        self._differentiate: dict[str, Any] = {"wrt": wrt, "strict": strict, "duality": duality}
        self._checks_duality, self._certify = duality is not False, True

    def __reduce__(self) -> tuple[Any, ...]:
        return _case, (self._given, None if self.starts is None else self.starts.layout)

    @cached_property
    def components(self) -> dict[str, slice]:
        """Slices of the reported functionals among the reported components."""
        sizes = [_size(self.system.functionals[name]) for name in self.names]
        ends = np.cumsum(sizes).tolist()
        return {n: slice(end - size, end) for n, end, size in zip(self.names, ends, sizes, strict=True)}

    @cached_property
    def columns(self) -> list[int]:
        """Indices of the reported components among all components."""
        parts = (self.system.functionals[name] for name in self.names)
        return [i for part in parts for i in range(part.start, part.stop)]

    # -- by compiled code ---------------------------------------------------------------------------------------

    @cached_property
    def plan(self) -> NativeBatch | str:
        """The native batch, or the reason why all runs are left to single calls."""
        setup, system = self.setup, self.system
        if not isinstance(setup.integrator, RunsMany):
            return f"adapter {setup.integrator.name!r} has no batches"
        if system.peaks:
            return "peaks, whose places a run decides"
        if self.analysis is not None and self._checks_duality:
            return "duality"
        if self.analysis is not None and not _is_judged_by_numbers(system):
            return "gradients with relations, kinks, directions of vectors, or functions that nobody can look into"
        directions, scales = None, None
        if self.analysis == "forward":
            columns = setup.columns(self.indices)
            directions, scales = np.ascontiguousarray(columns.T), setup.scales(columns)
        certify, back = self.analysis is not None, self.analysis == "adjoint"
        schedule = Schedule(system, setup.span[0], setup.p, setup.span[1])
        request = setup.request(
            setup.options, certify=certify, keep_path=back, t_eval=setup.t_eval, directions=directions, scales=scales,
            schedule=schedule,
        )  # fmt: skip
        origin = None if self.starts is None else self.starts.origin
        if request is None:
            return self._why_not()
        # forward analysis gives the gradients of all functionals, and checks the conditions of all
        of = self.names if back else system.functionals.names
        parts = tuple(tuple(range(system.functionals[n].start, system.functionals[n].stop)) for n in of if certify)
        n_start = 0 if self.starts is None else self.starts.size
        is_timed = any(system.graph.timed) or system.measurements or system.signals
        timetable = Timetable(system, setup.span, request.waiting, request.knots) if is_timed else None
        is_given = self.starts is None and system.graph.ends is not None and system.graph.ends.origin is not None
        starting = None if is_given or origin is not None else self._starts
        return NativeBatch(
            request,
            self.indices,
            parts,
            integrated(system),
            origin,
            n_start,
            self._certify,
            timetable,
            starting,
            relation_entries(system),
        )

    def _starts(self, given: Array) -> Array:
        """Starts of runs, see `NativeBatch`."""
        system, t0, found = self.system, self.setup.span[0], dict[int, Array]()
        mode, n_p = system.modes[system.initial.mode], system.parameters.size
        for i, row in enumerate(given):
            raise_if_cancelled()
            own = system if self.starts is None else self.starts.system(row[n_p:])
            with suppress(DaeHybridError):
                found[i] = own.initial.numbers(mode, t0, row[:n_p], differentiate=self.analysis is not None)
        rows = np.full((len(given), max((len(own) for own in found.values()), default=1)), np.nan)
        for i, numbers in found.items():
            rows[i] = numbers
        return rows

    def _why_not(self) -> str:
        """Return the reason why there is no request for native runs."""
        options, system = self.setup.options, self.system
        if not options.native_events:
            return "native_events=False"
        if not options.sensitivity_error_control:
            return "sensitivity_error_control=False"
        if system.graph.ends is not None:
            return "a signal, a time event or a measurement does not suit t_span at the nominal parameters"
        if any(signal.movable for signal in system.signals):
            return "signals whose values depend on parameters"
        if system.signals and any(measurement.movable for measurement in system.measurements):
            return "measurement times that depend on parameters beside signals"
        return "the start, the end or a measurement is not compiled"

    @cached_property
    def looser(self) -> CheckedCall:
        """The same case at looser tolerances, with gradients not subject to conditions."""
        other = copy(self)
        for name in ("plan", "_kind"):
            other.__dict__.pop(name, None)
        other.setup, other._certify = self.setup.looser(LOOSER), False
        return other

    def is_determined(self, p: Array, gradients: Array, others: Array) -> bool:
        """Whether gradients, (n_components, n_wrt), agree with those of `looser`; see `amplification`."""
        scale, functionals = np.where(p != 0, np.abs(p), 1.0)[list(self.indices)], self.system.functionals
        parts = self.components.values() if self.analysis == "adjoint" else (functionals[n] for n in functionals.names)
        least = self.setup.options.absolute(functionals)
        least = least[self.columns] if self.analysis == "adjoint" else least
        limit = lost(self.setup.options.rtol)
        return all(difference(gradients[i] * scale, others[i] * scale, least[i]) <= limit for i in parts)

    def crew(self) -> Crew | str:
        """Take a crew that carries out runs on one thread; return it with `rest`.

        A string is the reason why all runs are left to single calls.
        """
        if isinstance(self.plan, str):
            return self.plan
        with _resting:
            idle = self.system.graph.cache.setdefault("crews", [])
            for i, (kind, crew) in enumerate(idle):
                if kind == self._kind:
                    del idle[i]
                    return cast(Crew, crew)
        return cast(RunsMany, self.setup.integrator).crew(self.system.graph, self.plan)

    def rest(self, crew: Crew) -> None:
        """Return a crew for reuse."""
        with _resting:
            idle = self.system.graph.cache.setdefault("crews", [])
            idle.append((self._kind, crew))
            del idle[:-MOST_IDLE]

    @cached_property
    def _kind(self) -> tuple[Any, ...]:
        """Key of crews that can serve this case."""
        setup = self.setup
        times = None if setup.t_eval is None else setup.t_eval.tobytes()
        starts = None if self.starts is None else self.starts.layout
        what = self.analysis, self._certify, self.indices, self.names
        # systems that differ in their start share a graph
        return self.system.initial, setup.integrator.name, setup.options, setup.span, times, starts, *what

    def outcomes(self, count: int) -> Outcomes:
        """Allocate buffers for the results of `count` runs."""
        n_t = 0 if self.setup.t_eval is None else self.setup.t_eval.size
        rows = {None: 0, "forward": self.system.functionals.size, "adjoint": len(self.columns)}[self.analysis]
        return Outcomes.of(count, self.system.graph, n_t, rows, len(self.indices))

    def reported(self, gradients: Array) -> Array:
        """Select the reported functionals from gradients, (..., n_components, n_wrt)."""
        return gradients[..., self.columns, :] if self.analysis == "forward" else gradients

    # -- by single calls ----------------------------------------------------------------------------------------

    def single(self, p: Array, start: Array | None = None) -> Single:
        """Carry out one run as a single call; a reported functional that does not exist is its failure."""
        found = self._single(p, start)
        if self.system.peaks:
            refuse_absent(trajectory_of(found), self.columns)
        return found

    def _single(self, p: Array, start: Array | None) -> Single:
        system, span = self.system, self.setup.span
        if self.starts is not None and start is not None:
            system = self.starts.system(start)
        call = {**self._call, "parameters": p}
        if self.analysis is None:
            return api.simulate(system, span, **call)
        if self.analysis == "forward":
            return api.forward_sensitivity(system, span, **call, **self._differentiate)
        return {n: api.adjoint_gradient(system, span, n, **call, **self._differentiate) for n in self.names}


def _case(given: dict[str, Any], layout: Layout | None) -> CheckedCall:
    """A case of a pickle, and the layout of the initial values that are given."""
    return CheckedCall(**given, starts=None if layout is None else Starts.of(given["system"], layout))


def trajectory_of(single: Single) -> Trajectory:
    """The trajectory of a single call."""
    if isinstance(single, Trajectory):
        return single
    return next(iter(single.values())).trajectory if isinstance(single, dict) else single.trajectory


def gradients_of(single: Single) -> Array:
    """The gradients of a single call, (n_components, n_wrt) as in `Outcomes`; empty for a simulation."""
    if isinstance(single, Trajectory):
        return np.zeros((0, 0))
    found = [g.gradient for g in single.values()] if isinstance(single, dict) else list(single.gradient.values())
    return np.vstack([np.atleast_2d(rows) for rows in found])


def check_analysis(option: str, given: object, legal: str) -> Analysis | None:
    """Check the name of an analysis; None means no derivatives."""
    if given is None:
        return None
    if given not in ("forward", "adjoint"):
        raise OptionError(f"{option} must be {legal}, got {given!r}.")
    return "forward" if given == "forward" else "adjoint"


def functional_names(system: HybridSystem, functional: str | Sequence[str] | None) -> tuple[str, ...]:
    """Check names of functionals; None means all."""
    if functional is None:
        return system.functionals.names
    given = [functional] if isinstance(functional, str) else list(functional)
    names = tuple(system.functional_name(name) for name in given)
    if len(set(names)) < len(names) or not names:
        raise ParameterError(
            f"functional must name functionals, each once, got {functional!r}.",
            remedy=f"Functionals: {', '.join(system.functionals.names) or 'none'}.",
        )
    return names


def _size(part: slice) -> int:
    return int(part.stop - part.start)


def _is_judged_by_numbers(system: HybridSystem) -> bool:
    """Whether the numbers of a run suffice to check its derivatives.

    They do not if derivatives depend on relations evaluated at instants, other than those of `when`, on kinks at which
    a run may rest, on functions that may jump without showing it, or on directions of vectors that may vanish.
    """
    table = system.branches
    numbers = replace(table, transitions={i: own for i, own in table.transitions.items() if i not in table.permits})
    return not (numbers or table.called or table.directions or any(bool(own) for own in table.equations.values()))
