"""Event rules at an instant: guards that are armed, guards that fire, and the next time event.

A transition fires when its guard crosses zero in its direction while its source mode is active. On entry into
a mode (and at the start) every guard of that mode is evaluated at the state after the transition:

====================================== ====================================================================
guard on entry                         effect
====================================== ====================================================================
on the side it has yet to cross from   armed
zero to rounding, moving in its        fires at once, as the next record of the same instant
direction, by the first derivative
that is not zero
zero, and not                          armed once it has left zero
zero, and stays; the guard of a        counts to the side that `TransitionMap.zero_side` says: a weak comparison
condition                              holds there, a strict one does not
zero to the accuracy of the state, its armed once it has left zero by more than the accuracy
rate too, and about to leave
zero at the start of the run, its rate armed once it has left zero by more than the accuracy
too, to rounding
past its threshold                     waits for its next crossing and says so in `diagnostics`; or fires, or
                                       is an error, as the transition's ``on_entry`` says
====================================== ====================================================================

When a segment ends without a crossing (at a time event or the end of the run) the guards are evaluated again: armed
guards that are now zero have crossed. Transitions of one instant fire one after the other, each from the state after
the previous one.

During an instant in one mode each guard has a side of zero: its current side or, at zero, the side it came from or is
about to leave to. A guard fires when it crosses zero from its side. A transition therefore fires again if another one
has moved its guard back or reversed its rate, but not if its guard has stayed at zero or was moved by its own reset. A
guard that is due while another one fires keeps its side until it fires itself. A guard that jumps with a relation, but
not with a reset, crosses zero as well; a condition does so with either.

Conditions on a mode (bounds, `HybridModel.require`) are guards like any other, but transitions that are due at the same
time take precedence; a condition at zero must not leave it to the wrong side either.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from dae_hybrid.errors import DaeHybridError, EventError, NonFiniteError
from dae_hybrid.numerics.arrays import EPS, SMALLEST_NORMAL, Array
from dae_hybrid.options import Options
from dae_hybrid.port.failure_messages import NO_LIMIT, SUSPECTS, guard_passed
from dae_hybrid.port.integrator import SegmentTask
from dae_hybrid.port.point import StatePoint
from dae_hybrid.port.record_table import RecordTable
from dae_hybrid.port.segment_rules import SAME_INSTANT, same_instant
from dae_hybrid.simulation.firing import Firing
from dae_hybrid.simulation.resting_guards import at_rest, leaving_signs, settled, still_at_start
from dae_hybrid.simulation.zeno import EventTimes, chattering
from dae_hybrid.system.schedule import Schedule
from dae_hybrid.system.system import HybridSystem, ModeSystem
from dae_hybrid.system.transition_map import TransitionMap

#: a guard within this many rounding errors of its terms is zero
ZERO_ROUNDINGS = 256.0
#: a guard that has just fired in a mode that stays active is zero within this multiple of the value at which it fired
FIRED_VALUE_FACTOR = 4.0
#: with derivatives, events closer than this multiple of rtol times the elapsed time count as simultaneous,
SIMULTANEITY_RTOLS = 10.0
#: or up to this multiple if a second run shows errors of that size
MAX_SIMULTANEITY_RTOLS = 1000.0
NO_GUARDS: Mapping[int, tuple[float, float]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class SegmentEntry:
    """The transition that fires at once, if any; zero band and leaving sign of every guard (0 if unknown).

    At the end of a segment `began_at_zero` says which guards were at zero at its start.
    """

    fires: Firing | None
    zero_band: Array
    leaving_sign: Array
    began_at_zero: NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, dtype=bool))


@dataclass
class EventLogic:
    """State of the event rules in a run: sides of the guards, due times, limits on transitions."""

    system: HybridSystem
    span: tuple[float, float]
    options: Options
    schedule: Schedule
    slack: float = 0.0  # times within this difference are simultaneous
    chain: list[int] = field(default_factory=list)  # transitions of this instant
    #: |guard| at firing, by transition fired at this instant in the current mode
    fired_here: dict[int, float] = field(default_factory=dict)
    #: known sides of zero of the mode's guards; 0 for a guard at zero that may cross either way
    sides: dict[int, int] = field(default_factory=dict)
    nonzero: set[int] = field(default_factory=set)  # guards that were not at zero at their last evaluation
    still: dict[int, float] = field(default_factory=dict)  # zero bands of guards that are at rest at zero
    #: guards beyond zero that are due: their side, and whether they follow an earlier transition of the instant
    due_sides: dict[int, tuple[int, bool]] = field(default_factory=dict)
    last_fired: int | None = None  # transition fired since the last evaluation of the guards
    relations_changed: bool = False  # in time, not by a reset, with no other transition since
    counts: dict[int, int] = field(default_factory=dict)  # elapsed periods, by periodic transition
    last_ticks: dict[int, int] = field(default_factory=dict)  # the period in which each fired last
    clock_ticks: dict[str, int] = field(default_factory=dict)  # ticks by clock whose mode has been left since
    shared_ticks: dict[str, int] = field(default_factory=dict)  # last ticks of statements that several modes share
    fired_once: set[int | str] = field(default_factory=set)  # keys of transitions at a given time that have fired
    past_on_entry: set[tuple[str, str]] = field(default_factory=set)
    singular: set[tuple[str, str]] = field(default_factory=set)  # transitions at whose event the rates have no limit

    def __post_init__(self) -> None:
        self.event_times = EventTimes(self.span, self.options)
        self.ranges = np.zeros(len(self.system.transitions))  # largest |guard| so far
        self.stayed_at_zero = np.zeros(len(self.system.transitions), dtype=np.int64)  # whether it stayed at zero

    @property
    def reversed(self) -> bool:
        """Whether transitions that are due together fire from the last to the first."""
        return self.options.simultaneous == "reversed"

    def advance_time(self) -> None:
        """End the instant: time advances."""
        self.chain.clear()
        self.fired_here.clear()
        self.last_fired = None
        self.relations_changed = False

    def _forget_sides(self) -> None:
        """Discard the sides of the guards of the mode that was left."""
        self.fired_here.clear()
        self.sides.clear()
        self.nonzero.clear()
        self.due_sides.clear()
        self.still.clear()
        self.last_fired = None

    def _leave_mode(self, transition: TransitionMap, guard: float) -> None:
        """Discard the sides of guards, except those of guards that the next mode shares."""
        same = self._same_in_next(transition)
        sides = {same[i]: side for i, side in self.sides.items() if i in same}
        due_sides = {same[i]: side for i, side in self.due_sides.items() if i in same}
        nonzero = {same[i] for i in self.nonzero if i in same}
        self._forget_sides()
        self.sides, self.due_sides, self.nonzero = sides, due_sides, nonzero
        own = same.get(transition.trigger_index)
        if own is not None:
            self.fired_here[own], self.last_fired = guard, own
            self.due_sides.pop(own, None)

    def _same_in_next(self, transition: TransitionMap) -> dict[int, int]:
        """Return guarded transitions of the mode that is left and the same ones of the next mode."""
        cache, pair = self.system.graph.cache, ("same", transition.source, transition.target)
        if pair not in cache:
            every, modes = self.system.transitions, self.system.modes
            after = () if transition.target is None else modes[transition.target].guarded
            next_ = {every[i].shared: i for i in after if every[i].shared}
            before = modes[transition.source].guarded
            cache[pair] = {i: next_[every[i].shared] for i in before if every[i].shared in next_}
        same: dict[int, int] = cache[pair]
        return same

    def elapsed(self, t: float) -> float:
        """Return the time scale of rounding errors of times at t."""
        return max(abs(t), t - self.span[0])

    def _duration(self, t: float) -> float:
        """Return the time scale of the run."""
        return max(abs(t), self.span[1] - self.span[0])

    def note_sides(
        self,
        mode: ModeSystem,
        t: float,
        at: StatePoint,
        *,
        armed: frozenset[int],
        leaving: Mapping[int, int] = MappingProxyType({}),
        crossing: Firing | None = None,
    ) -> None:
        """Note the side of zero of every guard of the mode at the end of a segment.

        `armed` are the transitions whose guards have left zero in the segment, `leaving` is the leaving sign of the
        others, 0 if unknown; `crossing` is the one that the integrator located.
        """
        self.due_sides.clear()
        self.nonzero.clear()
        self._arm(armed)
        duration = self._duration(t)
        values = zip(mode.guarded, at.guards.tolist(), at.rates.tolist(), at.sizes.tolist(), strict=True)
        for index, h, rate, size in values:
            direction = self.system.transitions[index].direction
            band = max(self._zero_band(h, size, rate, t), self.still.get(index, 0.0))
            if not abs(h) <= band:
                beyond = 1 if h > 0 else -1
                missed = index in armed and crossing is not None and self.sides.get(index) == -beyond
                if missed and direction in (0, beyond) and index not in self.fired_here:
                    self.due_sides[index] = (beyond, False)  # has crossed together with the located one
                self.sides[index] = beyond
                self.nonzero.add(index)
                if crossing is not None and index == crossing.transition.index and h * crossing.rate > 0:
                    self.due_sides[index] = (self.sides[index], False)  # located less well than rounding
            elif index not in armed:
                self.sides[index] = leaving.get(index) or self.sides.get(index, 0)
                if not self.sides[index]:
                    del self.sides[index]
            elif math.isnan(rate) or abs(rate) * duration <= band:  # of a root, just below its zero
                self.sides.setdefault(index, 0)
            elif direction * rate >= 0 or self.system.transitions[index].becomes:
                self.sides[index] = -1 if rate > 0 else 1
            else:
                self.sides.pop(index, None)  # passes zero the other way

    def evaluate(
        self,
        mode: ModeSystem,
        t: float,
        at: StatePoint,
        *,
        entering: bool,
        jumped: frozenset[int] = frozenset(),
        resting: Mapping[int, tuple[float, float]] = NO_GUARDS,
        armed: frozenset[int] = frozenset(),
    ) -> SegmentEntry:
        """Evaluate the rules for every guard of the mode.

        `entering` says that the mode has just been entered, from another one or from itself, or that the run has just
        started; otherwise a segment has just ended. `jumped` are the transitions whose guards changed sign at a knot of
        a signal: they fire. `resting` is the result of `at_rest`; `armed` are the
        transitions whose guards have left zero since the mode was entered.
        """
        zero_band, leaving_sign = [0.0] * len(mode.guarded), [0.0] * len(mode.guarded)
        duration = self._duration(t)
        self.relations_changed |= bool(jumped)
        known = dict(self.sides), set(self.nonzero), set(self.past_on_entry)
        own, self.last_fired = self.last_fired, None
        if own is not None and self.system.transitions[own].relation is not None:
            own = None  # due again if the other side points back
        due: list[tuple[Firing, bool]] = []  # with whether firing is an error
        slow: tuple[Array, Array] | None = None  # signs with which guards leave zero whose rates are zero, and bands
        values = zip(mode.guarded, at.guards.tolist(), at.rates.tolist(), at.sizes.tolist(), strict=True)
        for i, (index, h, rate, size) in enumerate(values):
            transition = self.system.transitions[index]
            if not math.isfinite(h):
                raise NonFiniteError(
                    "The guard is NaN or infinite.",
                    transition=transition.name,
                    mode=mode.name,
                    time=t,
                    remedy=f"Check the guard, at the values that the mode is entered with, for {SUSPECTS}.",
                )
            self.ranges[index] = max(self.ranges[index], abs(h))
            direction, side = transition.direction, self.sides.get(index)
            band = max(self._zero_band(h, size, rate, t), FIRED_VALUE_FACTOR * self.fired_here.get(index, 0.0))
            band = max(band, self.still.get(index, 0.0))
            if index in resting and index not in jumped:
                zero_band[i], leaving_sign[i] = resting[index]
                self.sides[index] = int(leaving_sign[i])
                if transition.is_sided and leaving_sign[i] == direction:
                    due.append((Firing(transition, h, rate, follows=True), False))
                continue
            beyond, going, is_slow = 0, 0, False
            if abs(h) <= band:
                zero_band[i] = band
                if abs(rate) * duration > band and index not in self.still:
                    leaving_sign[i] = going = 1 if rate > 0 else -1
                elif not (index in armed or index in self.still or transition.refuses):
                    is_slow = max(abs(h), abs(rate) * duration) <= self._zero_band(h, size, rate, t)
                    if is_slow and slow is None:
                        run = self.span[1] - self.span[0]
                        slow = leaving_signs(mode, t, at, self.schedule.p, self.options, run)
                    going = int(slow[0][i]) if is_slow and slow is not None else 0
                    if going and slow is not None:
                        zero_band[i], leaving_sign[i] = max(band, float(slow[1][i])), going
                if not going:
                    if transition.relation is not None and not transition.relation.rests:
                        raise sign_at_rest(transition, mode.name, t)
                    is_held = index in self.fired_here and self._leads_back(mode, i, t, at, band / duration)
                    if is_held and self.settle(mode, i, t, at, self.schedule.p, back=True):
                        zero_band[i] = max(band, self.still[index])
                    if index not in self.still:
                        beyond = transition.zero_side(t, at.x, at.m, self.schedule.p)
                    elif side:  # it may leave to the other one
                        leaving_sign[i] = side
                    if transition.refuses or transition.is_sided:
                        leaving_sign[i] = beyond or -transition.direction
            else:
                beyond = 1 if h > 0 else -1
            if not beyond:
                met = entering and direction != 0 and (side is None or index in self.nonzero)
                if met and transition.becomes and side == going == transition.zero_side(t, at.x, at.m, self.schedule.p):
                    met = False  # a condition that has held all along
                if going and direction in (0, going) and (met or side in (0, -going)) and index != own:
                    due.append((Firing(transition, h, rate, follows=is_slow), False))
                else:
                    self.nonzero.discard(index)
                    if going and (entering or side is not None):
                        self.sides[index] = going
            else:
                flipped = self.relations_changed and transition.jumps and side == -beyond and direction in (0, beyond)
                if index in jumped or flipped:
                    self.due_sides[index] = (beyond, True)
                due_side, follows = self.due_sides.get(index, (0, True))
                met = entering and direction == beyond and side != beyond and index != own
                became = transition.becomes and side == -beyond and direction in (0, beyond) and index != own
                if due_side == beyond and index != own:
                    due.append((Firing(transition, h, rate, follows=follows), False))
                elif transition.refuses and entering and direction == beyond:
                    due.append((Firing(transition, h, rate, follows=True), False))
                elif became or (met and transition.on_entry != "wait"):
                    error = transition.on_entry == "error" and not became
                    due.append((Firing(transition, h, rate, follows=True), error))
                else:
                    self.sides[index] = beyond
                    self.nonzero.add(index)
                    self.due_sides.pop(index, None)
                    if met:
                        self.past_on_entry.add((transition.name, mode.name))
        fires = None
        if due:  # relations are updated first; conditions on the mode fail last
            due = [found for found in due if found[0].corrects] or due
            if any(found[0].transition.relation is not None for found in due):
                due = [found for found in due if not found[0].transition.becomes]
            due = [found for found in due if not found[0].transition.refuses] or due[:1]
            fires, is_error = min(due, key=lambda found: self.rank(found[0].transition, t, at))
            if is_error:
                raise overdue(fires.transition, mode.name, t)
            if fires.transition.relation is not None:  # sides are those of the branch that it leads to
                sides, nonzero, past = known
                if own in self.sides:  # its own guard has been met
                    sides[own] = self.sides[own]
                    nonzero.discard(own)
                self.sides, self.nonzero, self.past_on_entry = sides, nonzero, past
        return SegmentEntry(fires, np.array(zero_band), np.array(leaving_sign))

    def _leads_back(self, mode: ModeSystem, i: int, t: float, at: StatePoint, least: float) -> bool:
        """Whether the other branch of a relation moves its guard, at a rate above the least, and this one does not."""
        relation = self.system.transitions[mode.guarded[i]].relation
        if relation is None or not relation.is_condition:
            return False
        m = at.m.copy()
        m[relation.entry] = 1 - m[relation.entry]
        return bool(abs(mode.kernels["entry"](t, at.x, m, self.schedule.p)[2][i]) > least)

    def at_rest(
        self, mode: ModeSystem, t: float, at: StatePoint, p: Array, armed: frozenset[int]
    ) -> Mapping[int, tuple[float, float]]:
        """Return the transitions whose guards have been at rest at zero since mode entry; see `resting_guards`."""
        if t == self.span[0] and not self.event_times.known:
            self.note_still(mode, t, at, p)
        self._arm(armed)
        places = {
            i: self.system.transitions[index]
            for i, index in enumerate(mode.guarded)
            if index not in armed and index not in self.fired_here
        }
        if not self.event_times.known:
            places = {i: transition for i, transition in places.items() if transition.is_sided}
        if not places:
            return NO_GUARDS
        before = (time for time in reversed(self.event_times.known) if not same_instant(time, t, self.span[0]))
        past = t - next(before, self.span[0]) if self.event_times.known else self.span[1] - self.span[0]
        at_zero = at_rest(places, mode, t, at, p, self.options, past)
        return {places[i].index: band for i, band in at_zero.items()}

    def note_still(self, mode: ModeSystem, t: float, at: StatePoint, p: Array) -> None:
        """Note the guards that are at rest at the start of the run."""
        found = still_at_start(mode, t, at, p, self.options, self._duration(t))
        self.still = {mode.guarded[i]: band for i, band in found.items()}

    def settle(self, mode: ModeSystem, i: int, t: float, at: StatePoint, p: Array, *, back: bool) -> bool:
        """Note that a guard has come to rest at zero, to the accuracy of the state; return whether it has.

        `back` says that it has crossed against its direction.
        """
        largest = float(self.ranges[mode.guarded[i]])
        band = settled(mode, i, t, at, p, self.options, self.span[1] - self.span[0], largest, back=back)
        if band is None:
            return False
        self.still[mode.guarded[i]] = band
        self.stayed_at_zero[mode.guarded[i]] = 1
        return True

    def _arm(self, armed: frozenset[int]) -> None:
        """Forget the zero bands of guards that were at rest and have left zero."""
        for index in armed & self.still.keys():
            del self.still[index]

    def rank(self, transition: TransitionMap, t: float, at: StatePoint) -> tuple[float, int]:
        """Return a key that orders the transitions of an instant: by priority, then by declaration."""
        return -transition.priority(t, at.x, at.m, self.schedule.p), self._turn(transition)

    def _turn(self, transition: TransitionMap) -> int:
        """Return a key that orders transitions by declaration."""
        return -transition.index if self.reversed else transition.index

    def first_due(self, mode: ModeSystem, t: float, at: StatePoint, found: Firing, armed: frozenset[int]) -> Firing:
        """Return the transition that fires at a located crossing: others may be due at the same time to rounding."""
        for index, h, rate in self.moving_zeros(mode, t, at):
            transition = self.system.transitions[index]
            other = index != found.transition.index and index in armed and transition.direction * rate >= 0
            if transition.refuses != found.transition.refuses:
                earlier = found.transition.refuses
            elif (transition.relation is None) != (found.transition.relation is None) and (
                transition.becomes or found.transition.becomes
            ):  # a relation decides whether the guard of a condition passes zero or stays there
                earlier = transition.relation is not None
            else:
                earlier = self.rank(transition, t, at) < self.rank(found.transition, t, at)
            if other and earlier:
                found = Firing(transition, h, rate)
        return found

    def moving_zeros(self, mode: ModeSystem, t: float, at: StatePoint) -> list[tuple[int, float, float]]:
        """Return transitions whose guards are zero to rounding and have a nonzero rate, with value and rate."""
        values = zip(mode.guarded, at.guards.tolist(), at.rates.tolist(), at.sizes.tolist(), strict=True)
        duration = self._duration(t)
        return [
            (i, h, rate)
            for i, h, rate, size in values
            if abs(h) <= self._zero_band(h, size, rate, t) < abs(rate) * duration and i not in self.still
        ]

    def past_threshold(self, mode: ModeSystem, t: float, at: StatePoint) -> frozenset[int]:
        """Return the transitions of the mode whose guards are past their threshold."""
        values = zip(mode.guarded, at.guards.tolist(), at.rates.tolist(), at.sizes.tolist(), strict=True)
        return frozenset(
            i
            for i, h, rate, size in values
            if self.system.transitions[i].direction * h > self._zero_band(h, size, rate, t)
        )

    def is_due_within(self, moment: float, condition: TransitionMap, mode: ModeSystem, at: StatePoint) -> bool:
        """Whether, by the rates of the guards, a transition is due or the condition holds again within a time."""
        for index, h, rate in zip(mode.guarded, at.guards.tolist(), at.rates.tolist(), strict=True):
            transition = self.system.transitions[index]
            near = rate != 0 and 0 <= -h / rate <= moment
            if near and transition.refuses:
                if transition is condition and transition.direction * rate < 0:
                    return True
            elif near and transition.direction * rate >= 0:
                return True
        return False

    def at_zero(self, mode: ModeSystem, t: float, at: StatePoint) -> list[tuple[int, float]]:
        """Return the transitions of the mode whose guards are zero to rounding, with their rates."""
        values = zip(mode.guarded, at.guards.tolist(), at.rates.tolist(), at.sizes.tolist(), strict=True)
        return [
            (i, rate)
            for i, h, rate, size in values
            if abs(h) <= max(self._zero_band(h, size, rate, t), self.still.get(i, 0.0))
        ]

    def _zero_band(self, h: float, size: float, rate: float, t: float) -> float:
        """Return the zero band of a guard by rounding."""
        rounding = size + abs(rate) * self.elapsed(t)  # not finite if the guard is not differentiable
        band = ZERO_ROUNDINGS * EPS * (rounding if math.isfinite(rounding) else abs(h)) + SMALLEST_NORMAL
        return band + self.slack * abs(rate) if self.slack else band

    def rate_scale(self, transition: TransitionMap, t: float) -> float:
        """Return the range of the guard over the duration of the run."""
        return float(self.ranges[transition.index]) / self._duration(t)

    def due(self, mode: ModeSystem, t: float, at: StatePoint | None = None) -> tuple[float, TransitionMap | None, int]:
        """Return time, transition and count of the next time event of the mode, not before t.

        Of several at one time it is the first by priority, at a point, and by declaration.
        """
        every = list(self.timetable(mode, t))
        if not every:
            return np.inf, None, 0
        first = min(time for time, _, _ in every)
        together = (own for own in every if own[0] - first <= self._instant(first))
        if at is None:
            _, transition, count = min(together, key=lambda own: self._turn(own[1]))
        else:
            _, transition, count = min(together, key=lambda own: self.rank(own[1], t, at))
        return first, transition, count

    def _instant(self, t: float) -> float:
        """Return the largest difference of times that are equal to rounding at t."""
        return SAME_INSTANT * self.elapsed(t)

    def timetable(self, mode: ModeSystem, t: float, last: float = np.inf) -> Iterator[tuple[float, TransitionMap, int]]:
        """Yield the next time of every `every=` of the mode, and its `at=` up to `last` (by default only the next one).

        Simultaneous ones come in order of declaration.
        """
        for transition in self.schedule.periodic(mode):
            index = transition.index
            count = self.counts.get(index, 1)
            shared = transition.shared
            used = self.shared_ticks.get(shared, 0) if shared else self.clock_ticks.get(transition.clock, 0)
            past = max(self.last_ticks.get(index, 0), used)
            time = self.schedule.time(transition, count)
            while time < t - self._instant(t) or count <= past:
                first, period = self.schedule.ticks(transition)
                count = max(count + 1, int((t - first) / period) + 1)
                time = self.schedule.time(transition, count)
            self.counts[index] = count
            yield time, transition, count
        for time, transition in self.schedule.once(mode, t - self._instant(t), last):
            if transition.key not in self.fired_once:
                last = time + self._instant(time) if last == np.inf else last
                if time > last:
                    return
                yield time, transition, 0

    def fired(self, firing: Firing, t: float, guard: float = 0.0) -> int:
        """Note a firing at a value of its guard; return its order within the instant.

        Raises on chattering and Zeno behaviour.
        """
        order, transition = len(self.chain), firing.transition
        index = transition.trigger_index
        self.relations_changed = transition.relation is not None and (self.relations_changed or not firing.follows)
        self.chain.append(transition.index)
        if transition.trigger.is_timed:
            self.note_time(transition, self.counts.get(index, 0))
        if transition.target == transition.source:
            self.fired_here[index] = abs(guard) if math.isfinite(guard) else 0.0
            self.due_sides.pop(index, None)
            self.last_fired = index
        else:
            for index, count in self.last_ticks.items():
                clock = self.system.transitions[index].clock
                self.clock_ticks[clock] = max(count, self.clock_ticks.get(clock, 0))
            self._leave_mode(transition, abs(guard) if math.isfinite(guard) else 0.0)
        if len(self.chain) > self.options.max_transitions_per_instant:
            raise chattering(self.system, self.chain, self.options.max_transitions_per_instant, t)
        if order == 0:
            self.event_times.add(t, transition, self.system.modes[transition.source].name)
        return order

    def note_time(self, transition: TransitionMap, count: int) -> None:
        """Note that a time event has fired; `count` is the number of its tick."""
        if not transition.trigger.is_periodic:
            self.fired_once.add(transition.key)
            return
        self.last_ticks[transition.trigger_index] = count
        if transition.shared:
            self.shared_ticks[transition.shared] = count

    def note_resting(self, mode: ModeSystem, pending: Array) -> None:
        """Note the guards that have not left zero in a segment."""
        for index, band in zip(mode.guarded, pending.tolist(), strict=True):
            if band:
                self.stayed_at_zero[index] = 1

    def on_native_events(self, table: RecordTable, task: SegmentTask) -> None:
        """Update the rules after native events, with the task of the next segment."""
        self.event_times.known += table.times[table.orders[table.is_event] == 0].tolist()
        self.advance_time()
        self._forget_sides()
        event, mode = table.last
        guarded, guards = self.system.modes[mode].guarded, event["guards_after"]
        for index, guard, band, leaving_sign in zip(guarded, guards, task.zero_band, task.leaving_sign, strict=False):
            side = leaving_sign if band else guard
            if side:
                self.sides[index] = 1 if side > 0 else -1
            if not band:
                self.nonzero.add(index)
        for index, count in table.last_instant:
            transition = self.system.transitions[index]
            self.chain.append(index)
            if transition.trigger.is_timed:
                self.note_time(transition, count)
            if transition.trigger.is_periodic and transition.target != transition.source:
                self.clock_ticks[transition.clock] = count

    def notes(self) -> tuple[str, ...]:
        """Return the notes for `diagnostics`."""
        found = [past_on_entry(name, mode) for name, mode in sorted(self.past_on_entry)]
        found += resting(self.system, self.stayed_at_zero)
        found += [f"At the event of '{name}' in mode '{mode}' {NO_LIMIT}." for name, mode in sorted(self.singular)]
        if self.event_times.limit is not None:
            found.append(f"The run was ended: events accumulate at about t = {self.event_times.limit:.12g}.")
        return tuple(found)


def overdue(transition: TransitionMap, mode: str, t: float) -> DaeHybridError:
    """Return the error for a transition that must not be past its threshold on entry."""
    if not transition.overdue:
        return guard_passed(transition.name, mode, t)
    return EventError(
        f"{transition.overdue}.", transition=transition.title(np.zeros(0)), mode=mode, time=t,
        remedy="State a delay that is not negative at these parameters and values.",
    )  # fmt: skip


def past_on_entry(transition: str, mode: str) -> str:
    """Return the note on a guard that was past its threshold on entry."""
    where = f"was past its threshold on entry into mode '{mode}'"
    return f"Guard of '{transition}' {where}; it waits for its next crossing."


def resting(system: HybridSystem, stayed_at_zero: NDArray[np.int64]) -> list[str]:
    """Return the notes on guards that stayed at zero; `stayed_at_zero` is by transition."""
    found = (system.transitions[i] for i in np.flatnonzero(stayed_at_zero))
    transitions = [t for t in found if not (t.refuses or t.is_kink)] if stayed_at_zero.any() else []
    return [
        f"Guard of '{name}' stayed at zero in mode '{mode}'; it does not fire before it has left."
        for name, mode in sorted((t.name, system.modes[t.source].name) for t in transitions)
    ]


def sign_at_rest(transition: TransitionMap, mode: str, t: float) -> EventError:
    """Return the error for an argument of `sign` that stays at zero, where sign is 0."""
    what = "" if transition.relation is None else transition.relation.memory
    return EventError(
        f'The argument of sign rests at zero ("{what}" turns neither way): there sign is 0, and jumps when it leaves.',
        transition=transition.name,
        mode=mode,
        time=t,
        remedy="Give what rests a mode of its own, or state the side that holds there: 1 - 2*(x < 0) for sign(x).",
    )


def signs(at: StatePoint) -> list[int]:
    """Return the sign of every guard, 0 if it is zero to rounding."""
    band = ZERO_ROUNDINGS * EPS * np.where(np.isfinite(at.sizes), at.sizes, np.abs(at.guards)) + SMALLEST_NORMAL
    return [int(s) for s in np.where(np.abs(at.guards) <= band, 0.0, np.sign(at.guards))]
