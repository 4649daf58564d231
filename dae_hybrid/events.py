"""What happens at an instant: which guards are armed, which fire, when the next time event is due.

A transition fires when its guard crosses zero in its direction while its source mode is active. On entry into
a mode (and at the start) every guard of that mode is looked at with the state after the transition:

====================================== ====================================================================
guard on entry                         what happens
====================================== ====================================================================
on the side it has yet to cross from   armed
zero to rounding, moving in its        fires at once, as the next record of the same instant
direction
zero, and not                          armed once it has left zero
past its threshold                     waits for its next crossing and says so in `diagnostics`; or fires, or
                                       is an error, as the transition's ``on_entry`` says
====================================== ====================================================================

When a segment ends without a transition of its own (a time event, the end of the run) the guards are looked at
again: those that were armed and are zero now have crossed. Transitions of one instant fire one after the other, each
seeing what the one before left.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from dae_hybrid.errors import ChatteringError, GuardPassedError, NonFiniteError, ZenoError
from dae_hybrid.failures import SUSPECTS
from dae_hybrid.firing import Firing
from dae_hybrid.formulation import EPS
from dae_hybrid.integrator import Array
from dae_hybrid.options import Options
from dae_hybrid.system import HybridSystem, ModeSystem
from dae_hybrid.transition import Arrival, TransitionMap, clock

#: a guard within this many roundings of its terms is zero
ZERO_ROUNDINGS = 256.0
#: and so is, where its mode goes on, one that has just fired within this many times the value that it fired at
RESIDUE = 4.0
#: times closer than this share of the run's time scale are one instant
SAME_INSTANT = 4e-15
#: where derivatives are wanted, times that differ by less than so many rtol of what has passed are one instant
TOGETHER = 10.0
#: events accumulate when this many intervals in a row shrink by one ratio, to this spread,
ZENO_INTERVALS, ZENO_SPREAD, ZENO_RATIO, ZENO_WINDOW = 4, 0.01, 0.999, 12
#: and what is left of the series is below this share of what has passed
ZENO_REST = 1e-6
TINY = float(np.finfo(float).tiny)


def same_instant(one: float, other: float, start: float) -> bool:
    """Whether two times of a run that began at `start` are the same but for rounding."""
    return abs(one - other) <= SAME_INSTANT * max(abs(one), abs(other), abs(one - start))


@dataclass(frozen=True, slots=True)
class Entry:
    """What fires at once, and for each guard its zero band and the sign it leaves zero with (0 where unknown)."""

    fires: Firing | None
    zero_band: Array
    departure: Array


@dataclass
class Instant:
    """The transitions of one instant, and the limits on transitions."""

    system: HybridSystem
    span: tuple[float, float]
    options: Options
    slack: float = 0.0  # times that differ by no more are one instant
    chain: list[int] = field(default_factory=list)
    #: fired at this instant, their mode not left since, and how far from zero their guards were
    spent: dict[int, float] = field(default_factory=dict)
    times: list[float] = field(default_factory=list)
    counts: dict[int, int] = field(default_factory=dict)  # periods that have passed, by periodic transition
    passed: set[tuple[str, str]] = field(default_factory=set)
    accumulation: float | None = None  # where events accumulate, once that is seen

    def __post_init__(self) -> None:
        self.ranges = np.zeros(len(self.system.transitions))  # how large each guard has been
        self.rested = np.zeros(len(self.system.transitions), dtype=np.int64)  # whether it stayed at zero

    @property
    def reversed(self) -> bool:
        """Whether transitions that are due together fire from the last to the first."""
        return self.options.simultaneous == "reversed"

    def leave(self) -> None:
        """Time moves on."""
        self.chain.clear()
        self.spent.clear()

    def elapsed(self, t: float) -> float:
        """The time scale that rounding of times is measured by: what the run has added up so far."""
        return max(abs(t), t - self.span[0])

    def _duration(self, t: float) -> float:
        """The time scale of the run."""
        return max(abs(t), self.span[1] - self.span[0])

    def look(
        self,
        mode: ModeSystem,
        t: float,
        at: Arrival,
        *,
        entering: bool,
        armed: frozenset[int],
        jumped: frozenset[int] = frozenset(),
        past: frozenset[int] = frozenset(),
    ) -> Entry:
        """Look at every guard of the mode.

        `entering` says whether the mode has just been entered (or the run has just started); otherwise a
        segment has just ended, and `armed` are the transitions whose guards could cross in it. `jumped` are those
        whose guards changed sign with a signal: they fire. `past` are those that were past their threshold before a
        transition from the mode to itself: they are not met anew.
        """
        zero_band, departure = [0.0] * len(mode.guarded), [0.0] * len(mode.guarded)
        duration = self._duration(t)
        fires: Firing | None = None
        values = zip(mode.guarded, at.guards.tolist(), at.rates.tolist(), at.sizes.tolist(), strict=True)
        for i, (index, h, rate, size) in enumerate(values):
            transition, fire, passed = self.system.transitions[index], False, False
            if not math.isfinite(h):
                raise NonFiniteError(
                    "The guard is NaN or infinite.",
                    transition=transition.name,
                    mode=mode.name,
                    time=t,
                    remedy=f"Check the guard, at the values that the mode is entered with, for {SUSPECTS}.",
                )
            band = max(self._band(h, size, rate, t), RESIDUE * self.spent.get(index, 0.0))
            if abs(h) <= band:
                zero_band[i] = band
                moving = abs(rate) * duration > band
                departure[i] = math.copysign(moving, rate)
                towards = transition.direction * rate > 0 or (transition.direction == 0 and index in armed)
                fire = moving and towards and index not in self.spent and (entering or index in armed)
            elif index in jumped:
                fire = passed = True
            elif entering and transition.direction * h > 0 and index not in past:
                fire = passed = self._passed(transition, mode, t)
            if abs(h) > self.ranges[index]:
                self.ranges[index] = abs(h)
            if fire and (fires is None or self.reversed):
                fires = Firing(transition, h, rate, follows=passed)
        return Entry(fires, np.array(zero_band), np.array(departure))

    def first(self, mode: ModeSystem, t: float, at: Arrival, found: Firing, armed: frozenset[int]) -> Firing:
        """Which transition fires where the integrator has found one: others may be due to the last bit, too."""
        for index, h, rate in self.zeros(mode, t, at):
            transition = self.system.transitions[index]
            other = index != found.transition.index and index in armed and transition.direction * rate >= 0
            if other and (index < found.transition.index) != self.reversed:
                found = Firing(transition, h, rate)
        return found

    def zeros(self, mode: ModeSystem, t: float, at: Arrival) -> list[tuple[int, float, float]]:
        """Transitions of the mode whose guards are zero to rounding and move, with value and rate."""
        values = zip(mode.guarded, at.guards.tolist(), at.rates.tolist(), at.sizes.tolist(), strict=True)
        duration = self._duration(t)
        return [
            (i, h, rate) for i, h, rate, size in values if abs(h) <= self._band(h, size, rate, t) < abs(rate) * duration
        ]

    def past(self, mode: ModeSystem, t: float, at: Arrival) -> frozenset[int]:
        """Transitions of the mode whose guards are past their threshold."""
        values = zip(mode.guarded, at.guards.tolist(), at.rates.tolist(), at.sizes.tolist(), strict=True)
        return frozenset(
            i for i, h, rate, size in values if self.system.transitions[i].direction * h > self._band(h, size, rate, t)
        )

    def touching(self, mode: ModeSystem, t: float, at: Arrival) -> list[tuple[int, float]]:
        """Transitions of the mode whose guards are zero to rounding, with their rates."""
        values = zip(mode.guarded, at.guards.tolist(), at.rates.tolist(), at.sizes.tolist(), strict=True)
        return [(i, rate) for i, h, rate, size in values if abs(h) <= self._band(h, size, rate, t)]

    def _band(self, h: float, size: float, rate: float, t: float) -> float:
        """Within which a guard is zero to rounding."""
        rounding = size + abs(rate) * self.elapsed(t)  # of no finite size where the guard is not differentiable
        band = ZERO_ROUNDINGS * EPS * (rounding if math.isfinite(rounding) else abs(h)) + TINY
        return band + self.slack * abs(rate) if self.slack else band

    def rate_scale(self, transition: TransitionMap, t: float) -> float:
        """How fast the guard would move if it went through its range in the time of the run."""
        return float(self.ranges[transition.index]) / self._duration(t)

    def happened(self, t: float) -> list[TransitionMap]:
        """The transitions of this instant."""
        if not self.times or abs(self.times[-1] - t) > SAME_INSTANT * self.elapsed(t):
            return []
        return [self.system.transitions[i] for i in self.chain]

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
        if transition.on_entry == "fire":
            return True
        self.passed.add((transition.name, mode.name))
        return False

    def due(self, mode: ModeSystem, t: float, p: Array) -> tuple[float, TransitionMap | None, int]:
        """Time, transition and count of the next time event of the mode, not before t."""
        best: tuple[float, TransitionMap | None, int] = (np.inf, None, 0)
        for found in self.timetable(mode, t, p):
            if found[0] < best[0] or (self.reversed and found[0] == best[0]):
                best = found
        return best

    def timetable(self, mode: ModeSystem, t: float, p: Array) -> Iterator[tuple[float, TransitionMap, int]]:
        """The next time of every time event of the mode that still comes, in order of declaration."""
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
            if not (time < t or (time == t and index in self.chain)):
                yield time, transition, count

    def _scheduled(self, transition: TransitionMap, count: int, p: Array, t: float) -> float:
        time = float(transition.kernels["time"](p, clock(self.span[0], count))[0][0])
        if not np.isfinite(time) or (transition.kind == "every" and count and time <= self.span[0]):
            what = "period is not positive" if transition.kind == "every" else "time is not finite"
            raise NonFiniteError(
                f"The {what}: scheduled {time}.",
                transition=transition.name,
                mode=self.system.modes[transition.source].name,
                time=t,
                remedy="Check at= or every= of the transition at these parameters.",
            )
        return time

    def fired(self, transition: TransitionMap, t: float, guard: float = 0.0) -> int:
        """Note a firing, at a value of its guard; its order within the instant.

        Raises on chattering and Zeno behaviour.
        """
        order = len(self.chain)
        self.chain.append(transition.index)
        if transition.target == transition.source:
            self.spent[transition.index] = abs(guard) if math.isfinite(guard) else 0.0
        else:
            self.spent.clear()
        if len(self.chain) > self.options.max_transitions_per_instant:
            raise self._chattering(t)
        if order == 0:
            self.times.append(t)
            self._watch_accumulation(transition, t)
        return order

    def _chattering(self, t: float) -> ChatteringError:
        names = [self.system.transitions[i].name for i in self.chain]
        cycle = list(dict.fromkeys(names[-min(len(names), 12) :]))
        sliding = len(cycle) == 2
        surface = self.system.transitions[self.chain[-1]].surface
        return ChatteringError(
            f"More than {self.options.max_transitions_per_instant} transitions at one instant; the cycle is "
            f"{' -> '.join(cycle)}.",
            transition=names[-1],
            mode=self.system.modes[self.system.transitions[self.chain[-1]].source].name,
            time=t,
            remedy=f"The two modes point at each other across the surface {surface} = 0: a sliding mode. Model the "
            "motion along it as a mode of its own, with this as a constraint= (whose multiplier replaces the switched "
            "terms), or part the two guards by a hysteresis."
            if sliding
            else "Check the resets and guards of the cycle, or raise max_transitions_per_instant.",
        )

    def _watch_accumulation(self, transition: TransitionMap, t: float) -> None:
        """Intervals that shrink by one ratio add up to a finite time; refuse before they get lost in the steps."""
        steps = np.diff(self.times[-ZENO_INTERVALS - 1 :])
        if transition.kind != "guard" or steps.size < ZENO_INTERVALS or not steps[-1] <= ZENO_RATIO * steps[-2]:
            return
        limit = self.limit()
        if limit is None or limit - t > ZENO_REST * (t - self.span[0]) or limit > self.span[1]:
            return
        ratios = steps[1:] / steps[:-1]
        if np.ptp(ratios) > ZENO_SPREAD * ratios[-1]:
            return
        self.accumulation = limit
        if self.options.on_zeno == "end":
            return
        raise ZenoError(
            f"Events accumulate at about t = {limit:.12g}: the last interval is {steps[-1]:.3g}, each {ratios[-1]:.3g} "
            "of the one before.",
            transition=transition.name,
            mode=self.system.modes[transition.source].name,
            time=t,
            remedy="Model what happens at rest as a mode of its own, entered when the motion has become small, or end "
            "the run there with on_zeno='end'.",
        )

    def limit(self) -> float | None:
        """Where the latest events accumulate, by Aitken's extrapolation of their times; None where they do not."""
        times = np.array(self.times[-ZENO_WINDOW - 2 :])
        steps = np.diff(times)
        shrink = steps[:-1] - steps[1:]
        good = (shrink > 0) & (steps[1:] > 0)
        if not good.size or not good[-1]:
            return None
        # single intervals are known to the tolerance of the states
        return float(np.median(times[2:][good] + steps[1:][good] ** 2 / shrink[good]))

    def lose(self, error: ZenoError) -> bool:
        """Events have become too fast to follow: say where they accumulate, and whether the run is to end there."""
        limit = self.limit()
        if limit is None:
            return False
        error.message += f" By their intervals they accumulate at about t = {limit:.12g}."
        if self.options.on_zeno == "end":
            self.accumulation = limit
        return self.options.on_zeno == "end"

    def rest(self, mode: ModeSystem, pending: Array) -> None:
        """Note the guards that have not left zero in a segment."""
        for index, band in zip(mode.guarded, pending.tolist(), strict=True):
            if band:
                self.rested[index] = 1

    def catch_up(self, times: list[float]) -> None:
        """Transitions have fired at these times, each alone, and the next segment has begun."""
        self.times += times
        self.leave()

    def notes(self) -> tuple[str, ...]:
        """What was noticed."""
        found = [
            f"Guard of '{name}' was past its threshold on entry into mode '{mode}'; it waits for its next crossing."
            for name, mode in sorted(self.passed)
        ]
        found += resting(self.system, self.rested)
        if self.accumulation is not None:
            found.append(f"The run was ended: events accumulate at about t = {self.accumulation:.12g}.")
        return tuple(found)


def resting(system: HybridSystem, rested: NDArray[np.int64]) -> list[str]:
    """What is to be said of the guards that stayed at zero; `rested` is by transition."""
    transitions = [system.transitions[i] for i in np.flatnonzero(rested)] if rested.any() else []
    return [
        f"Guard of '{name}' stayed at zero in mode '{mode}'; it does not fire before it has left."
        for name, mode in sorted((t.name, system.modes[t.source].name) for t in transitions)
    ]


def signs(at: Arrival) -> list[int]:
    """Sign of every guard, 0 where it is zero to rounding."""
    band = ZERO_ROUNDINGS * EPS * np.where(np.isfinite(at.sizes), at.sizes, np.abs(at.guards)) + TINY
    return [int(s) for s in np.where(np.abs(at.guards) <= band, 0.0, np.sign(at.guards))]
