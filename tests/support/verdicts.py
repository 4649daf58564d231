"""Whether forward analysis, adjoint analysis and finite differences agree on a random system."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import numpy as np
from random_systems import RandomSystem, Restatement

import dae_hybrid as dh

#: relative differences that need no second look, of FSA - ASA and of FSA - finite differences
CLOSE, CLOSE_FD = 1e-5, 2e-5
STEPS = (4e-3, 1e-3, 2.5e-4)
#: what the library says of a system in place of accurate derivatives; warnings are errors here
TOLD = (dh.DaeHybridError, dh.DerivativeWarning, dh.ConditionWarning)
#: guards are looked at in steps: where ways disagree, shorter ones show whether a guard was passed twice within one
LONG, SHORT = 0.05, 1e-3


@dataclass(frozen=True)
class Verdict:
    """Outcome for one system.

    `outcome` is "agree", "refused: <error>: <reason>", "needless: ..." where nothing called for a refusal, "coarse:
    ..." where a finer tolerance gives the digits that are missing, or "DISAGREE <what, with numbers>"; `stage` where it
    was refused; `adjoint` and `differences` the largest relative differences from forward analysis, `compared` the
    directions in which finite differences converged, of `tried`.
    """

    seed: int
    outcome: str
    stage: str = ""
    adjoint: float = 0.0
    differences: float = 0.0
    compared: int = 0
    tried: int = 0
    events: int = 0
    forms: tuple[str, ...] = ()
    notes: tuple[str, ...] = field(default=())

    @property
    def kind(self) -> str:
        """agree, coarse, refused, needless, DISAGREE or DEFECT."""
        return self.outcome.split(":")[0].split(" ")[0]


class _Trial:
    def __init__(
        self, drawn: RandomSystem, system: dh.HybridSystem, adapter: str, rtol: float, atol: float, step: float
    ) -> None:
        self.drawn, self.system, self.adapter, self.step = drawn, system, adapter, step
        limits = {"rtol": rtol, "atol": atol, "max_step": step, "max_steps": 50_000, "max_events": 200}
        self.options: dict[str, Any] = {**limits, **drawn.options}
        self.wrt = {"wrt": system.parameters.names}  # all, with initial values that are parameters
        if adapter != "sundials":
            self.options["adapter"] = adapter
            self.options.pop("sensitivity_method", None)
            self.options.pop("method", None)

    def tighter(self) -> _Trial:
        """The same at tighter tolerances."""
        rtol = 1e-11 if self.adapter == "sundials" else 1e-12
        return _Trial(self.drawn, self.system, self.adapter, rtol, 1e-13, self.step)

    def analyses(self) -> tuple[dh.ForwardSensitivity, dict[str, dh.Gradient]]:
        return self.forward(), self.adjoint()

    def forward(self) -> dh.ForwardSensitivity:
        return dh.forward_sensitivity(self.system, self.drawn.span, **self.wrt, **self.options)

    def adjoint(self) -> dict[str, dh.Gradient]:
        names = self.system.functionals.names
        return {n: dh.adjoint_gradient(self.system, self.drawn.span, n, **self.wrt, **self.options) for n in names}

    def run(self, p: np.ndarray) -> dh.Trajectory:
        return dh.simulate(self.system, self.drawn.span, parameters=p, **self.options)

    def slopes(
        self, direction: np.ndarray, path: list[tuple[Any, ...]], steps: tuple[float, ...]
    ) -> list[tuple[float, np.ndarray]]:
        """Directional derivatives of all functionals by central differences of fourth order, largest step first."""
        p = self.system.parameter_vector(None)
        found = []
        for h in steps:
            values = []
            for shift in (-2, -1, 1, 2):
                try:
                    run = self.run(p + shift * h * direction)
                except dh.DaeHybridError:
                    break
                if history(run) != path:
                    break
                values.append(together(run.functionals))
            if len(values) == 4:
                found.append((h, (8 * (values[2] - values[1]) - (values[3] - values[0])) / (12 * h)))
        return found


def history(run: dh.Trajectory) -> list[tuple[Any, ...]]:
    """Transitions of a run, with order and direction."""
    return [(e.transition, e.order, e.direction) for e in run.events]


def together(values: Any) -> np.ndarray:
    """All functionals in one column."""
    return np.concatenate([np.atleast_1d(v) for v in values.values()]) if values else np.zeros(0)


def relative(one: np.ndarray, other: np.ndarray, scale: np.ndarray) -> float:
    """Largest difference over the scale of its row."""
    difference = np.abs(one - other)
    difference = difference.max(axis=1, initial=0.0) if difference.ndim == 2 else difference
    return float(np.nan_to_num(difference / scale, nan=np.inf).max(initial=0.0))


def judge(drawn: RandomSystem, *, adapter: str = "sundials", native: bool = False, directions: int = 2) -> Verdict:
    """Build, run, differentiate in all ways and compare; nothing but refusals and verdicts comes out."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        verdict = _judge(drawn, adapter, native, directions, LONG)
        if verdict.kind == "DISAGREE":
            again = _judge(drawn, adapter, native, directions, SHORT)
            if again.kind != "DISAGREE":
                return replace(again, notes=(*again.notes, f"in steps of {LONG:g}: {verdict.outcome}"))
    return verdict


def _judge(drawn: RandomSystem, adapter: str, native: bool, directions: int, step: float) -> Verdict:
    common: dict[str, Any] = {"seed": drawn.seed, "forms": drawn.forms}
    stage = "build"
    try:
        system = drawn.system(native=native)
        trial = _Trial(drawn, system, adapter, 1e-9, 1e-11, step)
        stage = "simulate"
        base = trial.run(system.parameter_vector(None))
        common["events"] = len(base.events)
        stage = "forward"
        refusals: list[Exception] = []
        try:
            forward = trial.forward()
        except TOLD as error:
            refusals.append(error)
        stage = "adjoint" if not refusals else "forward alone"
        adjoint = trial.adjoint()
        stage = "compare"
        if not refusals:
            return _compare(trial, base, forward, adjoint, directions, common)
        return Verdict(outcome=f"refused: {type(refusals[0]).__name__}: {refusals[0]}", stage="forward alone", **common)
    except TOLD as error:
        stage = {"adjoint": "adjoint alone", "forward alone": "forward and adjoint"}.get(stage, stage)
        return Verdict(outcome=f"refused: {type(error).__name__}: {error}", stage=stage, **common)
    except Exception as error:  # whatever else comes out is a defect, and the verdict says which
        return Verdict(outcome=f"DEFECT: {type(error).__name__}: {error}", stage=stage, **common)


def _compare(
    trial: _Trial, base: dh.Trajectory, forward: dh.ForwardSensitivity, adjoint: dict[str, dh.Gradient],
    directions: int, common: dict[str, Any],
) -> Verdict:  # fmt: skip
    drawn, system = trial.drawn, trial.system
    path = history(base)
    trouble: list[str] = []
    values = together(base.functionals)
    size = np.maximum(np.abs(values), 1.0)
    for way, found in (("forward", forward.functionals), ("adjoint", {n: g.value for n, g in adjoint.items()})):
        if (off := relative(together(found), values, size)) > 1e-5:
            trouble.append(f"values of {way} analysis are off by {off:.1e}")
    for way, run in (("forward", forward.trajectory), *((f"adjoint of {n}", g.trajectory) for n, g in adjoint.items())):
        if history(run) != path:
            trouble.append(f"events of {way} analysis are {history(run)}, simulated {path}")

    triggers = {t.name: t.kind for t in drawn.transitions}
    for event in base.events:  # one that is not at zero will fire again
        near = abs(event.guard) <= 1e-12 * max(1.0, abs(event.rate), event.rate_scale)
        if triggers.get(event.transition) == "guard" and not event.follows and not near:
            trouble.append(f"{event} has a guard of {event.guard:.1e}")

    def rows(gradients: Any) -> np.ndarray:
        return np.vstack([np.atleast_2d(gradients[name]) for name in system.functionals.names])

    one, two = rows(forward.gradient), rows({n: g.gradient for n, g in adjoint.items()})
    scale = np.maximum(np.abs(one).max(axis=1), 1e-2 * size)
    off = relative(one, two, scale)
    notes: list[str] = []
    tighter = trial.tighter()
    if off > CLOSE:
        try:
            first, second = tighter.analyses()
            sharp = relative(rows(first.gradient), rows({n: g.gradient for n, g in second.items()}), scale)
        except dh.DaeHybridError as error:
            notes.append(f"tighter: {type(error).__name__}")
            sharp = off
        if sharp > CLOSE and sharp > 0.2 * off:
            trouble.append(f"FSA - ASA is {off:.1e}, at tighter tolerances {sharp:.1e}")
        else:
            notes.append(f"FSA - ASA was {off:.1e}, at tighter tolerances {sharp:.1e}")
            one, two = rows(first.gradient), rows({n: g.gradient for n, g in second.items()})
            off = sharp
    rng = np.random.default_rng(drawn.seed)
    p = system.parameter_vector(None)
    worst, compared = 0.0, 0
    for _ in range(directions):
        direction = rng.normal(size=p.size) * np.maximum(np.abs(p), 0.3)
        reach = np.maximum(np.abs(one) @ np.abs(direction), scale)
        for attempt, (judged, steps) in enumerate(((trial, STEPS), (tighter, (1e-3, 2e-4, 5e-5)))):
            found = judged.slopes(direction, path, steps)
            # the pair of steps that agree best is the derivative, their difference its error
            pairs = [(relative(a, b, reach), b) for (_, a), (_, b) in pairwise(found)]
            if not pairs:
                continue
            error, slope = min(pairs, key=lambda pair: pair[0])
            distance = relative(one @ direction, slope, reach)
            if error > 1e-3:
                continue
            if distance <= max(CLOSE_FD, 10 * error):
                compared += 1
                worst = max(worst, distance)
                break
            if attempt:
                trouble.append(
                    f"finite differences are off by {distance:.1e} (their own error {error:.1e}): "
                    f"{slope} against {one @ direction} (FSA) and {two @ direction} (ASA)"
                )
    outcome = f"DISAGREE {'; '.join(trouble)}" if trouble else "agree"
    return Verdict(
        outcome=outcome, stage="compare", adjoint=off, differences=worst, compared=compared, tried=directions,
        notes=tuple(notes), **common,
    )  # fmt: skip


# -- restatements -------------------------------------------------------------------------------------------------

AS_DRAWN = Restatement()


def restated(drawn: RandomSystem, how: Restatement, *, plain: Restatement = AS_DRAWN, native: bool = False) -> str:
    """Describe the effect of a restatement, with numbers; empty if there is none."""
    changes = ""
    for step, rtol in ((LONG, 1e-9), (LONG, 1e-11), (SHORT, 1e-11)):
        changes = _changes(_outcome(drawn, plain, step, rtol, native), _outcome(drawn, how, step, rtol, native))
        if not changes:
            break
    return changes


@dataclass(frozen=True)
class _Outcome:
    refused: str
    value: np.ndarray = field(default_factory=lambda: np.zeros(0))
    gradient: np.ndarray = field(default_factory=lambda: np.zeros((0, 0)))
    times: np.ndarray = field(default_factory=lambda: np.zeros(0))
    transitions: tuple[str, ...] = ()


def _outcome(drawn: RandomSystem, how: Restatement, step: float, rtol: float, native: bool) -> _Outcome:
    """A gradient, by forward or adjoint analysis, and the events, in the terms of the system as drawn."""
    span = (drawn.span[0] / how.stretch, drawn.span[1] / how.stretch)
    limits = {"rtol": rtol, "atol": rtol / 100, "max_step": step / how.stretch, "max_events": 200}
    options: dict[str, Any] = {**limits, **drawn.options}
    functional = how.prefix + ("G", "H")[drawn.seed // 2 % 2]
    wrt = [how.prefix + name for name in drawn.parameters]
    try:
        system = drawn.system(native=native, how=how)
        if drawn.seed % 2:
            forward = dh.forward_sensitivity(system, span, wrt=wrt, **options)
            run, gradient = forward.trajectory, forward.gradient[functional]
            labels = forward.parameters
        else:
            adjoint = dh.adjoint_gradient(system, span, functional, wrt=wrt, **options)
            run, gradient, labels = adjoint.trajectory, adjoint.gradient, adjoint.parameters
    except dh.DaeHybridError as error:
        return _Outcome(type(error).__name__)
    names = [label.removeprefix(how.prefix) for label in labels]
    named = {t.name for t in drawn.transitions}
    events = [(e.transition.removeprefix(how.prefix), e.time * how.stretch) for e in run.events]
    events = [(name, t) for name, t in events if name in named]
    return _Outcome(
        "",
        np.atleast_1d(run.functionals[functional]),
        np.atleast_2d(gradient)[:, np.argsort(names)],
        np.array([t for _, t in events]),
        tuple(name for name, _ in events),
    )


def _changes(one: _Outcome, other: _Outcome) -> str:
    if one.refused or other.refused:
        same = one.refused == other.refused
        return "" if same else f"refused: {one.refused or 'no'}, restated: {other.refused or 'no'}"
    if one.transitions != other.transitions:
        return f"transitions {one.transitions} became {other.transitions}"
    size = np.maximum(np.abs(one.value), 1.0)
    scale = np.maximum(np.abs(one.gradient).max(axis=1), 1e-2 * size)
    found = {
        "value": relative(one.value, other.value, size),
        "gradient": relative(one.gradient, other.gradient, scale),
        "event times": relative(one.times, other.times, np.ones(one.times.size)),
    }
    return ", ".join(f"{what} is off by {off:.1e}" for what, off in found.items() if off > CLOSE)
