"""What happens at an instant: which guards are armed, which fire, when the next time event is due.

The rules are those of the table in the user's guide ("Transitions"): a guard fires when it crosses zero
in its direction; on entry into a mode every guard of that mode is looked at with the state after the
transition.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from dae_hybrid.errors import ChatteringError, GuardPassedError, NonFiniteError, ZenoError
from dae_hybrid.formulation import EPS
from dae_hybrid.integrator import Array
from dae_hybrid.system import HybridSystem, ModeSystem
from dae_hybrid.transition import TransitionMap

#: a guard within this many roundings of its terms is zero
ZERO_ROUNDINGS = 256.0
#: events are accumulating when this many intervals in a row shrink and the last is below ZENO_INTERVAL of the span
ZENO_EVENTS = 12
ZENO_INTERVAL = 1e-8


@dataclass(frozen=True, slots=True)
class Entry:
    """The guards of a mode at entry: what fires at once, and the zero band of each guard."""

    fires: TransitionMap | None
    guard: float
    rate: float
    zero_band: Array
    xdot: Array


@dataclass
class Instant:
    """The transitions of one instant, and the limits on transitions."""

    system: HybridSystem
    span: tuple[float, float]
    limit: int
    chain: list[int] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    counts: dict[int, int] = field(default_factory=dict)  # periods that have passed, by periodic transition
    passed: set[tuple[str, str]] = field(default_factory=set)

    def leave(self) -> None:
        """Time moves on."""
        self.chain.clear()

    def enter(self, mode: ModeSystem, t: float, x: Array, m: Array, p: Array, crossed: frozenset[int]) -> Entry:
        """Look at every guard of the mode with the state after the transition.

        `crossed` are the transitions whose guards were seen to cross at this instant but have not fired yet.
        """
        xdot, h, rate, size = mode.kernels["entry"](t, x, m, p)
        if not np.all(np.isfinite(h)):
            raise NonFiniteError("A guard is NaN or infinite.", mode=mode.name, time=t)
        elapsed = max(abs(t), self.span[1] - self.span[0])
        band = ZERO_ROUNDINGS * EPS * (size + np.abs(rate) * elapsed) + np.finfo(float).tiny
        zero = np.abs(h) <= band
        fires = None
        for i, index in enumerate(mode.guarded):
            transition = self.system.transitions[index]
            if zero[i]:
                moving = abs(rate[i]) * elapsed > band[i]
                towards = transition.direction * rate[i] > 0 or (transition.direction == 0 and index in crossed)
                fire = moving and towards and index not in self.chain
            else:
                fire = transition.direction * h[i] > 0 and self._passed(transition, mode, t)
            if fire and fires is None:
                fires = i
        zero_band = np.where(zero, band, 0.0)
        if fires is None:
            return Entry(None, 0.0, 0.0, zero_band, xdot)
        return Entry(self.system.transitions[mode.guarded[fires]], float(h[fires]), float(rate[fires]), zero_band, xdot)

    def _passed(self, transition: TransitionMap, mode: ModeSystem, t: float) -> bool:
        """A guard past its threshold on entry; whether it fires."""
        if transition.on_entry == "error":
            raise GuardPassedError(
                "The guard is past its threshold when its mode is entered.",
                transition=transition.name,
                mode=mode.name,
                time=t,
                remedy="Check the transition into this mode, or declare on_entry='wait' or 'fire'.",
            )
        self.passed.add((transition.name, mode.name))
        return transition.on_entry == "fire"

    def due(self, mode: ModeSystem, t: float, p: Array) -> tuple[float, TransitionMap | None, int]:
        """Time, transition and count of the next time event of the mode, not before t."""
        best: tuple[float, TransitionMap | None, int] = (np.inf, None, 0)
        for index in mode.timed:
            transition = self.system.transitions[index]
            count = self.counts.get(index, 1 if transition.kind == "every" else 0)
            time = self._scheduled(transition, count, p, t)
            while transition.kind == "every" and (time < t or (time == t and index in self.chain)):
                period = self._scheduled(transition, 1, p, t) - self.span[0]
                count = max(count + 1, int((t - self.span[0]) / period))
                time = self._scheduled(transition, count, p, t)
            if transition.kind == "every":
                self.counts[index] = count
            stale = time < t or (time == t and index in self.chain)
            if not stale and time < best[0]:
                best = (time, transition, count)
        return best

    def _scheduled(self, transition: TransitionMap, count: int, p: Array, t: float) -> float:
        time = float(transition.kernels["time"](p, self.clock(count))[0][0])
        if not np.isfinite(time) or (transition.kind == "every" and count and time <= self.span[0]):
            what = "period is not positive" if transition.kind == "every" else "time is not finite"
            raise NonFiniteError(f"The {what}: scheduled {time}.", transition=transition.name, time=t)
        return time

    def clock(self, count: int) -> Array:
        """(start time, count), what a trigger needs to know of time events."""
        return np.array([self.span[0], float(count)])

    def fired(self, transition: TransitionMap, t: float) -> int:
        """Note a firing; its order within the instant. Raises on chattering and Zeno behaviour."""
        order = len(self.chain)
        self.chain.append(transition.index)
        if len(self.chain) > self.limit:
            raise self._chattering(t)
        if order == 0:
            self.times.append(t)
            self._watch_accumulation(transition, t)
        return order

    def _chattering(self, t: float) -> ChatteringError:
        names = [self.system.transitions[i].name for i in self.chain]
        cycle = list(dict.fromkeys(names[-min(len(names), 12) :]))
        sliding = len(cycle) == 2
        return ChatteringError(
            f"More than {self.limit} transitions at one instant; the cycle is {' -> '.join(cycle)}.",
            transition=names[-1],
            time=t,
            remedy="The two modes point at each other across one surface: a sliding mode. Model the sliding motion as a "
            "mode of its own."
            if sliding
            else "Check the resets and guards of the cycle, or raise max_transitions_per_instant.",
        )

    def _watch_accumulation(self, transition: TransitionMap, t: float) -> None:
        recent = np.diff(self.times[-ZENO_EVENTS - 1 :])
        if (
            transition.kind != "guard"
            or recent.size < ZENO_EVENTS
            or recent[-1] > ZENO_INTERVAL * (self.span[1] - self.span[0])
        ):
            return
        ratios = recent[1:] / recent[:-1]
        if np.all(ratios < 1.0):
            limit = t + recent[-1] * ratios[-1] / (1.0 - ratios[-1])
            raise ZenoError(
                f"Events accumulate at about t = {limit:.12g}: the last interval is {recent[-1]:.3g}, each shorter than the one before.",
                transition=transition.name,
                time=t,
                remedy="Model what happens at rest as a mode of its own, entered when the motion has become small.",
            )

    def diagnostics(self) -> tuple[str, ...]:
        """What was noticed."""
        return tuple(
            f"Guard of '{name}' was past its threshold on entry into mode '{mode}'; it waits for its next crossing."
            for name, mode in sorted(self.passed)
        )
