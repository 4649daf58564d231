"""Zeno behaviour and chattering: transitions without end, at ever shorter intervals or at one instant."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from dae_hybrid.errors import ChatteringError, ZenoError
from dae_hybrid.options import Options
from dae_hybrid.system.system import HybridSystem
from dae_hybrid.system.transition_map import TransitionMap

#: events accumulate if this many successive intervals shrink by the same ratio, within this spread,
ZENO_INTERVALS, ZENO_SPREAD, ZENO_RATIO, ZENO_WINDOW = 4, 0.01, 0.999, 12
#: and the remainder of the series is below this share of the elapsed time
ZENO_REMAINDER = 1e-6


@dataclass
class EventTimes:
    """Times of the events of a run, and the limit at which they accumulate, once detected."""

    span: tuple[float, float]
    options: Options
    known: list[float] = field(default_factory=list)  # the latest ones at least
    limit: float | None = None

    def add(self, t: float, transition: TransitionMap, mode: str) -> None:
        """Add a time, that of a transition out of a mode.

        Intervals that shrink geometrically, whose sum is finite, raise before they fall below the step size.
        """
        self.known.append(t)
        steps = np.diff(self.known[-ZENO_INTERVALS - 1 :])
        if transition.trigger.is_timed or steps.size < ZENO_INTERVALS or not steps[-1] <= ZENO_RATIO * steps[-2]:
            return
        limit = self._extrapolated()
        if limit is None or not t <= limit <= min(t + ZENO_REMAINDER * (t - self.span[0]), self.span[1]):
            return
        ratios = steps[1:] / steps[:-1]
        if np.ptp(ratios) > ZENO_SPREAD * ratios[-1]:
            return
        self.limit = limit
        if self.options.on_zeno == "end":
            return
        raise ZenoError(
            f"Events accumulate at about t = {limit:.12g}: the last interval is {steps[-1]:.3g}, each {ratios[-1]:.3g} "
            "of the one before.",
            transition=transition.name,
            mode=mode,
            time=t,
            remedy="Model what happens at rest as a mode of its own, entered when the motion has become small, or end "
            "the run there with on_zeno='end'.",
        )

    def end_at_limit(self, error: ZenoError) -> bool:
        """Add the limit to the error of unresolved events; return whether the run ends there."""
        limit = self._extrapolated()
        if limit is None:
            return False
        error.message += f" By their intervals they accumulate at about t = {limit:.12g}."
        if self.options.on_zeno == "end":
            self.limit = limit
        return self.options.on_zeno == "end"

    def _extrapolated(self) -> float | None:
        """Return the limit of the latest event times by Aitken's extrapolation; None if they do not accumulate."""
        times = np.array(self.known[-ZENO_WINDOW - 2 :])
        steps = np.diff(times)
        shrink = steps[:-1] - steps[1:]
        good = (shrink > 0) & (steps[1:] > 0)
        if not good.size or not good[-1]:
            return None
        grown = np.flatnonzero(~good)
        since = grown[-1] + 1 if grown.size else 0
        # the median, since single intervals carry the error of the states
        return float(np.median(times[2:][since:] + steps[1:][since:] ** 2 / shrink[since:]))


def chattering(system: HybridSystem, chain: Sequence[int], most: int, t: float) -> ChatteringError:
    """Return the error for more than `most` transitions at an instant; `chain` are their indices."""
    names = [system.transitions[i].name for i in chain]
    cycle = list(dict.fromkeys(names[-min(len(names), 12) :]))
    last = system.transitions[chain[-1]]
    sliding = len(cycle) == 2 and len({system.transitions[i].source for i in chain[-2:]}) == 2
    sliding = sliding or (len(cycle) == 1 and last.relation is not None)
    what, surface = "two modes", f"{last.surface} = 0"
    if last.relation is not None:
        what, surface = f'two sides of the relation "{last.relation.memory}"', "of their equality"
    return ChatteringError(
        f"More than {most} transitions at one instant; the cycle is {' -> '.join(cycle)}.",
        transition=names[-1],
        mode=system.modes[last.source].name,
        time=t,
        remedy=f"The {what} point at each other across the surface {surface}: a sliding mode. Model the "
        "motion along it as a mode of its own: blend the two right-hand sides by a share, "
        "theta = m.algebraic('theta', bounds=(0, 1)), and keep the surface by constraint=. Leave it to either side "
        "by the rate of the surface function along that side's right-hand side, where it turns away, with "
        "on_entry='fire': where theta would be outside on entry, the surface is crossed at once. Or part the two "
        "guards by a hysteresis."
        if sliding
        else "Check the resets and guards of the cycle, or raise max_transitions_per_instant.",
    )
