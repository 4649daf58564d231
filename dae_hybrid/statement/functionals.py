"""Declare the functionals of a model; base class of `HybridModel`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Unpack

from dae_hybrid.errors import ModelError
from dae_hybrid.statement.declarations import Functional, Series
from dae_hybrid.statement.expressions import checked_name, expression, items
from dae_hybrid.statement.peaks import PeakParts, peaks_of, size_of
from dae_hybrid.statement.series import is_series, stated
from dae_hybrid.statement.transitions import Transitions


@dataclass
class Functionals(Transitions):
    """The modes, transitions and functionals of a model."""

    functionals: dict[str, Functional] = field(default_factory=dict, init=False)

    def functional(
        self,
        name: str,
        *,
        integrand: Any = None,
        terminal: Any = None,
        at_times: Mapping[Any, Any] | Sequence[tuple[Any, Any]] | None = None,
        at_events: Mapping[Any, Any] | None = None,
        **peaks: Unpack[PeakParts],
    ) -> None:
        """Declare a functional, scalar or vector, as the sum of its parts.

        Each part may use states, algebraic variables, derivatives, memory, parameters and time. All parts must have
        the same size.

        Parameters
        ----------
        integrand : expression
            Integrated over the run (Serban and Recuero 2019, eq. 7, 29).
        terminal : expression
            Evaluated at the end of the run, which may be a transition.
        at_times : mapping of time to expression, or sequence of such pairs
            Evaluated at the given times, numbers or expressions in parameters, such as misfits to measurements. At the
            time of an event, the value after the event counts. In a pair, a time may be an array of n numbers; the
            value then has n rows, one for each time, or one row for all. So ``[(times, (x - data)**2)]`` is a sum of
            squares.
        at_events : mapping of transition to expression
            Added each time the transition fires; may use pre-transition values, `post` and `unknown`.
        maximum, minimum, maximum_abs : expression
            The extremum over the run, entry by entry of a vector: at a stationary point, on either side of an event or
            of a knot of a signal, at the start or at the end.
        time_of_maximum, time_of_minimum, time_of_maximum_abs : expression
            The time of that extremum.
        overshoot : (signal, start, target)
            The maximum of ``(signal - target) / (target - start)``.
        rise_time : (signal, low, high)
            Time from the first crossing of `low` to the first crossing of `high`.
        settling_time : (signal, target, band)
            Time from the start of the run until the signal stays within ``target - band`` and ``target + band``.
        time_above, exceedance : (signal, bound)
            Duration for which the signal is above the bound, and the integral of what exceeds it.

        Raises
        ------
        ModelError
            The name is taken, the functional has no part, or the sizes of its parts differ.
        """
        checked_name("functional", name)
        if name in self.functionals:
            raise ModelError(f"Functional '{name}' is declared twice.")
        pairs, series = list[tuple[Any, Any]](), list[Series]()
        for when, value in _pairs(at_times, name):
            if is_series(when):
                moving = (*self.of_kind("differential"), *self.of_kind("algebraic"))
                found, singles = stated(name, when, value, moving)
                series += [] if found is None else [found]
                pairs += singles
            else:
                pairs.append((when, value))
        costs_by_event = items(f"at_events of functional '{name}'", at_events)
        times = [expression(f"measurement time of functional '{name}'", when, 1) for when, _ in pairs]
        fired = {self._transition(key, name): part for key, part in costs_by_event}
        whole = [
            None if part is None else expression(f"{kind} of functional '{name}'", part, None)
            for kind, part in (("integrand", integrand), ("terminal", terminal))
        ]
        measured = [expression(f"measurement of functional '{name}'", value, None) for _, value in pairs]
        costs = [expression(f"cost at an event of functional '{name}'", value, None) for value in fired.values()]
        decided, integrands = peaks_of(name, peaks)
        for own in integrands:
            whole[0] = own if whole[0] is None else whole[0] + own
        sizes = {part.numel() for part in (*whole, *measured, *(s.value for s in series), *costs) if part is not None}
        sizes |= {size_of(part) for part in decided}
        if not sizes:
            raise ModelError(
                f"Functional '{name}' needs an integrand, a terminal value, at_times, at_events or a peak, or several "
                "of them."
            )
        if len(sizes) > 1 or 0 in sizes:
            raise ModelError(f"Functional '{name}': all parts must have one common size, got {sorted(sizes)}.")
        self.functionals[name] = Functional(
            name,
            sizes.pop(),
            whole[0],
            whole[1],
            tuple(zip(times, measured, strict=True)),
            tuple(zip(fired, costs, strict=True)),
            tuple(series),
            tuple(decided),
        )


def _pairs(at_times: Any, functional: str) -> list[tuple[Any, Any]]:
    try:
        if at_times is None:
            return []
        return [(t, value) for t, value in (at_times.items() if hasattr(at_times, "items") else at_times)]
    except (TypeError, ValueError):
        raise ModelError(
            f"at_times of functional '{functional}' must be a mapping of time to expression, or pairs of them."
        ) from None
