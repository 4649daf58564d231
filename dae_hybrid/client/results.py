"""Results of the library from answers of the service: numbers by name become a trajectory of the local system."""

from __future__ import annotations

import csv
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from dae_hybrid.client.segments import Decoded, parts_of, state_of, vector
from dae_hybrid.errors import NotKeptError, ServiceError
from dae_hybrid.interface.gradient_check import GradientCheck
from dae_hybrid.numerics.arrays import Array
from dae_hybrid.options import Keep, Options
from dae_hybrid.port.point import StatePoint
from dae_hybrid.port.record_table import RecordTable
from dae_hybrid.sensitivity.results import Along, ForwardSensitivity, Gradient
from dae_hybrid.system.initial import RunStart
from dae_hybrid.system.system import HybridSystem
from dae_hybrid.trajectory.diagnostics import Check, Diagnostics
from dae_hybrid.trajectory.parts import TrajectoryParts
from dae_hybrid.trajectory.trajectory import Segment, Trajectory


def not_sent(what: str) -> NotKeptError:
    """Return the error of a result that stayed with the service."""
    return NotKeptError(
        f"The {what} of this run were not sent: it was carried out by a service.",
        remedy="Ask the service for outputs at the times wanted (t_eval=), or run the model on this machine: "
        "dae_hybrid.simulate(remote[name].model.build(), ...).",
    )


@dataclass(frozen=True, eq=False, repr=False)
class RemoteTrajectory(Trajectory):
    """A run that a service carried out; steps and dense output stayed there."""

    def _demand(self, what: str, *enough: Keep) -> None:
        if self.kept not in enough:
            raise not_sent(what)

    @property
    def pieces(self) -> Sequence[Segment]:
        """The smooth parts with their ends and outputs; they have no steps."""
        self._demand("outputs", "events")
        return self.parts.segments


def _refuse_adjoint(*_: Any) -> list[Array]:
    raise not_sent("adjoint variables")


def decoded[**P, T](decode: Callable[P, T], *arguments: P.args, **further: P.kwargs) -> T:
    """Decode an answer.

    Raises
    ------
    ServiceError
        It does not have the expected form.
    """
    try:
        return decode(*arguments, **further)
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, csv.Error) as reason:
        raise ServiceError(
            f"The answer of the service does not have the expected form: {reason!r}.",
            remedy="Use a client and a service of the same version of dae_hybrid.",
        ) from reason


def trajectory_of(system: HybridSystem, options: Options, answer: dict[str, Any]) -> Trajectory:
    """Return the trajectory of an answer to ``simulate``."""
    return _trajectory(system, options, answer, parts_of(Decoded(system, answer)), "events")


def forward_sensitivity_of(system: HybridSystem, options: Options, answer: dict[str, Any]) -> ForwardSensitivity:
    """Return the forward sensitivities of an answer to ``forward``."""
    indices = system.parameter_indices(answer["wrt"])
    directions = np.eye(system.parameters.size)[:, list(indices)]
    found = _trajectory(system, options, answer, parts_of(Decoded(system, answer, directions)), "events")
    times = [vector(row) for row in answer["event_time_sensitivity"]]
    sides = []
    for event, record in zip(answer["event_sensitivities"], found.events, strict=True):
        pair = []
        for size, end in zip(record.n_differential, ("minus", "plus"), strict=True):
            state = vector(event[f"state_{end}"]).reshape(size, len(indices))
            pair.append(np.vstack((state, vector(event[f"memory_{end}"]).reshape(system.memory.size, len(indices)))))
        sides.append((pair[0], pair[1]))
    return ForwardSensitivity(
        trajectory=found,
        parameters=tuple(answer["wrt"]),
        gradient={name: vector(values) for name, values in answer["gradients"].items()},
        duality={},
        _directions=Along(directions, times, sides),
        _verdict=_diagnostics(answer, of_run=False),
    )


def gradient_of(system: HybridSystem, options: Options, answer: dict[str, Any]) -> Gradient:
    """Return the gradient of an answer to ``gradient``."""
    return Gradient(
        functional=answer["functional"],
        value=_number(answer["value"]),
        parameters=tuple(answer["wrt"]),
        gradient=vector(answer["gradient"]),
        trajectory=_trajectory(system, options, answer, [], "final"),
        statistics=answer["backward_statistics"],
        duality=None,
        algorithm=answer["algorithm"],
        _verdict=_diagnostics(answer, of_run=False),
        _samples=_refuse_adjoint,
    )


def checked_gradients_of(answer: dict[str, Any]) -> GradientCheck:
    """Return the comparison of an answer to ``check``."""
    return GradientCheck(
        answer["functional"],
        _number(answer["value"]),
        tuple(answer["wrt"]),
        {way: vector(values) for way, values in answer["gradients"].items()},
        answer["same_events"],
    )


def _trajectory(
    system: HybridSystem, options: Options, answer: Mapping[str, Any], parts: list[Any], kept: Keep
) -> RemoteTrajectory:
    p = vector([entry for name in system.parameters.names for entry in np.ravel(answer["parameters"][name])])
    p.flags.writeable = False
    indices = {mode.name: i for i, mode in enumerate(system.modes)}
    first, last = (indices[answer[end]["mode"]] for end in ("start", "final"))
    x0, m0 = state_of(system, first, answer["start"]["values"])
    mode, none, t_span = system.modes[first], np.zeros(0), (answer["t_span"][0], answer["t_span"][1])
    xdot = vector([rate for name in mode.variables.names for rate in np.ravel(answer["start"]["rates"][name])])
    run = RemoteTrajectory(
        system=system,
        t_span=t_span,
        options=options,
        parameters=p,
        parts=_known(parts, answer, indices),
        integrals=vector(answer["integrals"]),
        functionals=MappingProxyType({name: _number(value) for name, value in answer["functionals"].items()}),
        statistics=MappingProxyType(dict(answer["statistics"])),
        notes=_diagnostics(answer, of_run=True).notes[len(system.notes) :],
        start=RunStart(system.initial, mode, t_span[0], StatePoint(x0, m0, xdot, none, none, none), p),
        final=(float(answer["t_end"]), last, *state_of(system, last, answer["final"]["values"])),
        kept=kept,
        sampled=True,
        accumulation=answer["accumulation"],
    )
    run.__dict__["diagnostics"] = _diagnostics(answer, of_run=True)
    return run


def _known(parts: list[Any], answer: Mapping[str, Any], indices: Mapping[str, int]) -> TrajectoryParts:
    """Parts, with the numbers of those that the service has not sent."""
    found = TrajectoryParts(lambda: parts, _no_table)
    events = answer.get("events", [])
    modes = {answer[end]["mode"] for end in ("start", "final")} | {event["source"] for event in events}
    found.__dict__ |= {
        "n_segments": answer["n_segments"],
        "n_events": answer["n_events"],
        "is_certified": all(event["certified"] for event in events),
        "ends_with_event": answer["ended_by_event"],
        "modes": frozenset(indices[name] for name in modes),
    }
    return found


def _no_table(_: RecordTable) -> Any:
    raise AssertionError("a run of a service has no record tables")


def _diagnostics(answer: Mapping[str, Any], *, of_run: bool) -> Diagnostics:
    """Notes and checks of the run, or those that an analysis has added."""
    notes = answer["diagnostics"]
    checks = [Check(own["name"], own["passed"], own["detail"]) for own in answer["checks"]]
    n, k = answer.get("n_notes_of_run", len(notes)), answer.get("n_checks_of_run", len(checks))
    return Diagnostics(tuple(notes[:n]), tuple(checks[:k])) if of_run else Diagnostics(
        tuple(notes[n:]), tuple(checks[k:])
    )  # fmt: skip


def _number(value: ArrayLike | None) -> Any:
    """A number or an array, NaN for a number that does not exist."""
    return vector(value) if isinstance(value, list) else np.nan if value is None else value
