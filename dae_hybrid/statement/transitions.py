"""Declare modes' transitions, their triggers, and the clocks of sampled systems; base class of `HybridModel`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import casadi as ca

from dae_hybrid.errors import ModelError
from dae_hybrid.numeric_input import shown
from dae_hybrid.statement.conditions import is_condition
from dae_hybrid.statement.declarations import (
    DIRECTIONS,
    Clock,
    Declaration,
    Delay,
    Direction,
    Kind,
    Mode,
    OnEntry,
    Transition,
)
from dae_hybrid.statement.expressions import checked_name, equation_rows, expression, free_name, labelled, matrix
from dae_hybrid.statement.norms import factors_of, vector_of
from dae_hybrid.statement.symbols import Rest, Symbols
from dae_hybrid.statement.triggers import PeriodicTrigger, StateTrigger, TimesTrigger, TimeTrigger, Trigger
from dae_hybrid.statement.vector_entries import chosen

#: words that stand for modes in `transition`
ALL, SAME = "all", "same"
#: kinds of the variables that a mapping of resets may name
STATES: tuple[Kind, ...] = ("differential",)
#: largest number of pending delayed transitions; each is a guard of its modes
MAX_PENDING = 1000


@dataclass
class Transitions(Symbols):
    """The modes and transitions of a model."""

    modes: dict[str, Mode] = field(default_factory=dict, init=False)
    transitions: dict[str, Transition] = field(default_factory=dict, init=False)
    clocks: dict[str, Clock] = field(default_factory=dict, init=False)

    def transition(
        self,
        source: Mode | str | Sequence[Mode | str],
        target: Mode | str | None,
        *,
        guard: Any = None,
        at: Any = None,
        every: Any = None,
        direction: Direction = "both",
        reset: Mapping[Any, Any] | Sequence[Any] | None = None,
        memory: Mapping[Any, Any] | None = None,
        project: Sequence[Any] | None = None,
        metric: Any = None,
        guess: Mapping[Any, Any] | None = None,
        on_entry: OnEntry = "wait",
        resolution: float | None = None,
        when: Any = None,
        priority: Any = None,
        delay: Any = None,
        values: Literal["execution", "trigger"] = "execution",
        persistent: bool = True,
        pending: int = 8,
        name: str | None = None,
    ) -> Transition:
        """Declare a transition between two modes, or one that ends the run.

        Parameters
        ----------
        source : Mode or str, or sequence of these
            Mode before the transition, several modes, or ``"all"``, including modes that are declared later.
        target : Mode or str, or None
            Mode after the transition; ``"same"`` is the mode that is active, and None ends the run.
        guard : scalar expression
            Fires when it crosses zero in `direction`. A condition, such as ``x > 1`` or `all_of`, fires when it becomes
            true, or false with ``direction="falling"``. It may use pre-transition states, algebraic variables,
            derivatives (`der`), memory, parameters and time. Within each integrator step it is monitored by its values
            and rates; set `resolution` if it varies much faster than the state. A guard that depends on memory and
            parameters alone fires when a transition moves it across zero.
        at : expression in parameters and memory, or array of n of them
            Fires at a time, or at each of n times, in any order. Values of `reset` and `memory` then have n rows, one
            for each time, or one row for all. A time that depends on memory is taken at the values of the last event;
            if these set it into the past, it does not fire.
        every : expression in parameters, or Clock
            Fires at start time + k period, k = 1, 2, ..., or at the ticks of a `clock`. Exactly one of `guard`, `at`,
            `every` is required. Transitions with the same period, or the same clock, tick together: a tick consumed by
            a transition that leaves its mode is not available in the target mode.
        direction : {"rising", "falling", "both"}
            Direction of the crossing.
        reset : mapping of variable to expression, or sequence of equations, optional
            A mapping gives new values of differential variables in terms of the old ones. A sequence states
            ``0 = T(post, pre, p, t)`` (Serban and Recuero 2019, eq. 3c, 16c) with `post`, `pre` and `unknown`, and is
            solved together with the target's equations and constraints. Variables without a `post` are continuous.
        memory : mapping of memory to expression, optional
            Updates of memory declared without ``of=``; may use `post` and `unknown`.
        project : sequence of variables, optional
            After the reset, move these differential variables to the nearest point that satisfies the target's
            constraints; the others are held fixed.
        metric : number, vector or matrix expression, optional
            Defines "nearest" for `project`: the mass matrix, or its diagonal, in pre-transition values; identity by
            default.
        guess : mapping of variable to expression, optional
            Initial guess of Newton's method for values after the transition, in pre-transition values. The defaults
            are the values before the transition (algebraic variables and variables of implicit resets) and the
            declared guess (unknowns). If an implicit reset has several solutions, the one that Newton's method
            reaches from the guess is taken.
        on_entry : {"wait", "fire", "error"}
            Action if the guard is already past its threshold on entry into `source`: wait for the next crossing, fire
            at once, or raise `GuardPassedError`. Several such transitions fire in order of declaration, each with the
            values left by the one before.
        resolution : float, optional
            Longest time between two evaluations of the guard. Choose the shortest time for which the guard may stay
            on one side of zero. The integrator's steps are not shortened; ``max_step`` does that.
        when : condition, optional
            Must hold at the event, in pre-transition values; otherwise nothing happens, and the guard waits for its
            next crossing. Unlike a part of a guard, it does not trigger the transition when it becomes true.
        priority : expression, optional
            Of transitions that are due at the same instant, the one with the highest priority fires first; 0 by
            default. Those with equal priorities fire in order of declaration.
        delay : nonnegative expression, optional
            Time between the trigger and the transition, in values at the trigger. Several may be pending at once.
            They are dropped when another transition leaves the modes of `source`.
        values : {"execution", "trigger"}
            Whether `reset` and `memory` of a delayed transition are evaluated when it is carried out, or when it is
            triggered.
        persistent : bool
            If False, a pending transition is cancelled when the condition or the sign of the guard that triggered it
            is lost.
        pending : int
            Largest number of delayed transitions pending at once; one more ends the run in a `ConsistencyError`.
        name : str, optional
            Default ``"source->target"``, numbered if that is taken.

        Raises
        ------
        ModelError
            The name is taken, or an argument is invalid or not an expression of this model.

        Examples
        --------
        A dose in any mode, and an alarm 0.1 after the level has fallen below 1 unless it recovers:

        >>> import dae_hybrid as dh
        >>> m = dh.HybridModel("doses")
        >>> k, x, alarms = m.parameter("k", 1.0), m.differential("x"), m.memory("alarms", initial=0.0)
        >>> run = m.mode("run", ode={x: -k * x})
        >>> dose = m.transition("all", "same", at=[1.0, 2.0], reset={x: x + [0.5, 1.5]}, name="dose")
        >>> alarm = m.transition(
        ...     "all", "same", guard=x < 1, delay=0.1, persistent=False, memory={alarms: alarms + 1}, name="alarm"
        ... )
        >>> m.initial(run, {x: 2.0})
        >>> sol = dh.simulate(m.build(), (0, 2.5))
        >>> [(event.transition, round(event.time, 3)) for event in sol.events if event.transition in ("dose", "alarm")]
        [('alarm', 0.793), ('dose', 1.0), ('alarm', 1.312), ('dose', 2.0)]
        """
        starts = self._sources(source)
        is_same = isinstance(target, str) and target == SAME
        stays = is_same and len(starts) != 1
        end = None if target is None or stays else starts[0] if is_same else self._mode(target, "target")
        if name is None:
            goal = SAME if stays else end.name if end else "end"
            name = free_name(f"{'|'.join(mode.name for mode in starts) or ALL}->{goal}", self.transitions)
        checked_name("transition", name)
        if name in self.transitions:
            raise ModelError(f"Transition '{name}' is declared twice.")
        trigger = self._trigger(name, guard, at, every)
        if not isinstance(direction, str) or direction not in DIRECTIONS:
            raise ModelError(f"Transition '{name}': direction must be rising, falling or both, got {direction!r}.")
        if not isinstance(on_entry, str) or on_entry not in ("wait", "fire", "error"):
            raise ModelError(f"Transition '{name}': on_entry must be wait, fire or error, got {on_entry!r}.")
        number = isinstance(resolution, int | float) and not isinstance(resolution, bool)
        if resolution is not None and not (number and 0 < resolution < 1e300):
            raise ModelError(f"Transition '{name}': resolution must be a positive time, got {resolution!r}.")
        reset = labelled(f"reset of transition '{name}'", reset)
        explicit = reset is None or isinstance(reset, Mapping)
        if project is not None and not isinstance(project, list | tuple):
            raise ModelError(f"project of transition '{name}' must be a list of variables, got {shown(project)}.")
        moved = tuple(self.lookup(v, f"project of transition '{name}'") for v in project or ())
        self._check_projection(name, moved, metric, explicit=explicit)
        rows = trigger.count if isinstance(trigger, TimesTrigger) else None
        # entries that are not given keep the values that they have when it is carried out
        rest: Rest = "open" if delay is not None and values == "trigger" else "kept"
        transition = Transition(
            name,
            starts,
            end,
            trigger,
            DIRECTIONS[direction],
            on_entry,
            math.inf if resolution is None else float(resolution),
            self.assignments(reset if explicit else None, f"reset of transition '{name}'", STATES, rows, rest=rest),
            self.assignments(memory, f"memory of transition '{name}'", ("memory",), rows, rest=rest),
            *equation_rows(f"reset equation of transition '{name}':", None if explicit else reset),
            moved,
            None if metric is None else matrix(f"metric of transition '{name}'", metric),
            self.assignments(guess, f"guess of transition '{name}'", ("differential", "algebraic", "unknown")),
            stays=stays,
            when=None if when is None else expression(f"when of transition '{name}'", when, 1),
            priority=None if priority is None else expression(f"priority of transition '{name}'", priority, 1),
            delay=None if delay is None else self._delay(name, trigger, direction, delay, values, persistent, pending),
        )
        if transition.delay is None and (values != "execution" or persistent is not True):
            raise ModelError(f"Transition '{name}' has values= or persistent= without a delay=.")
        if transition.delay is not None and transition.delay.at_trigger and transition.equations.numel():
            raise ModelError(f"Transition '{name}': values='trigger' needs an explicit reset, a mapping.")
        if transition.delay is not None and transition.delay.at_trigger:
            self._refuse_after(transition)
        if (
            end is None
            and not stays
            and (transition.reset or transition.equations.numel() or transition.memory or moved)
        ):
            raise ModelError(f"Transition '{name}' ends the run: reset=, memory= and project= have no meaning.")
        for key in transition.memory:
            part = chosen(self.declarations, key)
            declared = self.declarations[key] if part is None else part[0]
            if declared.of is not None or declared.signal is not None:
                raise ModelError(
                    f"Transition '{name}' updates memory '{key}', which already is of= a variable, or a signal's."
                )
        self.transitions[name] = transition
        return transition

    def require(self, mode: Mode | str, quantity: Any, reason: str, *, name: str | None = None) -> Transition:
        """Require that a quantity stays positive in a mode: the run is refused where it falls to zero.

        Transitions due at the same instant fire first. For constant bounds of an algebraic variable use ``bounds=``.

        Parameters
        ----------
        mode : Mode or str
            Mode in which the requirement holds.
        quantity : scalar expression
            May use the same quantities as a guard.
        reason : str
            Message of the `ConsistencyError`.
        name : str, optional
            Default ``"<mode> requires"``, numbered if that is taken.

        Examples
        --------
        >>> import dae_hybrid as dh
        >>> m = dh.HybridModel("tank")
        >>> h = m.differential("h")
        >>> run = m.mode("run", ode={h: -1.0})
        >>> _ = m.require(run, h, "The tank is empty.")
        >>> m.initial(run, {h: 0.5})
        >>> dh.simulate(m.build(), (0, 1))
        Traceback (most recent call last):
        dae_hybrid.errors.ConsistencyError: The tank is empty. [mode 'run', transition 'run requires', t = 0.5]
        """
        where = self._mode(mode, "mode")
        name = free_name(f"{where.name} requires", self.transitions) if name is None else name
        stated = self.transition(where, None, guard=quantity, direction="falling", on_entry="error", name=name)
        self.transitions[name] = replace(stated, refusal=str(reason))
        return self.transitions[name]

    def _refuse_after(self, transition: Transition) -> None:
        """Refuse values at the trigger that do not exist before the execution."""
        values = ca.veccat(ca.MX(0, 1), *transition.reset.values(), *transition.memory.values())
        used = {s.__hash__() for s in ca.symvar(values)}
        late = [f"post({name})" for name, symbol in self.posts.items() if symbol.__hash__() in used]
        late += [d.name for d in self.of_kind("unknown") if d.symbol.__hash__() in used]
        if late:
            raise ModelError(
                f"Transition '{transition.name}' has values='trigger' and uses {', '.join(late)}, which exist only "
                "when it is carried out.",
                transition=transition.name,
                variables=late,
                remedy="Write the value after the transition in terms of values before it, or use values='execution'.",
            )

    def _sources(self, source: Any) -> tuple[Mode, ...]:
        """The source modes, none for all."""
        if isinstance(source, str) and source == ALL:
            return ()
        if isinstance(source, str | Mode):
            return (self._mode(source, "source"),)
        if not isinstance(source, Sequence) or not source:
            raise ModelError(f"source must be a mode, a sequence of modes or 'all', got {shown(source)}.")
        found = tuple(self._mode(mode, "source") for mode in source)
        if len({mode.name for mode in found}) < len(found):
            raise ModelError(f"source names a mode twice: {', '.join(mode.name for mode in found)}.")
        return found

    def _trigger(self, name: str, guard: Any, at: Any, every: Any) -> Trigger:
        given = [key for key, value in (("guard", guard), ("at", at), ("every", every)) if value is not None]
        if len(given) != 1:
            raise ModelError(
                f"Transition '{name}' needs exactly one of guard=, at=, every=; got {', '.join(given) or 'none'}."
            )
        what = f"{given[0]} of transition '{name}'"
        if guard is not None:
            stated = expression(what, guard, 1)
            if any(vector_of(factor) is not None for factor in factors_of(stated)):
                raise ModelError(
                    f"The {what} is a norm: it touches zero where all components of its vector vanish at once, and "
                    "crosses zero nowhere.",
                    transition=name,
                    remedy="State which length counts as none, guard=norm - eps, with eps well above atol, and see "
                    "what a smaller eps changes.",
                )
            return StateTrigger(stated)
        if at is not None:
            times = expression(what, at, None)
            return TimeTrigger(times) if times.numel() == 1 else TimesTrigger(times)
        if isinstance(every, Clock):
            clock = self._clock(every)
            return PeriodicTrigger(ca.vertcat(clock.period, clock.offset), clock.name)
        return PeriodicTrigger(expression(what, every, 1))

    @staticmethod
    def _delay(
        name: str, trigger: Trigger, direction: str, delay: Any, values: Any, persistent: Any, pending: Any
    ) -> Delay:
        if not isinstance(values, str) or values not in ("execution", "trigger"):
            raise ModelError(f"Transition '{name}': values must be execution or trigger, got {values!r}.")
        if not isinstance(persistent, bool):
            raise ModelError(f"Transition '{name}': persistent must be True or False, got {shown(persistent)}.")
        if isinstance(pending, bool) or not isinstance(pending, int) or not 1 <= pending <= MAX_PENDING:
            raise ModelError(
                f"Transition '{name}': pending must be an integer from 1 to {MAX_PENDING}, got {shown(pending)}."
            )
        if not persistent and (trigger.is_timed or (direction == "both" and not is_condition(trigger.expression))):
            raise ModelError(
                f"Transition '{name}': persistent=False needs a condition, or a guard with a direction.",
                remedy="State the guard as a comparison, such as x > 1.",
            )
        time = expression(f"delay of transition '{name}'", delay, 1)
        if time.is_constant() and float(time.to_DM()) < 0:
            raise ModelError(f"Transition '{name}': delay must not be negative, got {float(time.to_DM()):g}.")
        return Delay(time, values == "trigger", persistent, pending)

    # -- clocks -------------------------------------------------------------------------------------

    def clock(self, period: Any, *, offset: Any = None, factor: int = 1, name: str | None = None) -> Clock:
        """Declare a clock, for `update` and for ``every=`` of a transition.

        It ticks at start time + offset + k period, k = 0, 1, 2, ...

        Parameters
        ----------
        period : expression in parameters, or Clock
            Positive time between two ticks. Of another clock, every `factor`-th tick is taken, the first one included.
        offset : expression in parameters, optional
            Nonnegative time of the first tick after the start of the run; 0 by default.
        factor : int
            Number of ticks of another clock between two ticks of this one.
        name : str, optional
            Default ``"clock"``, numbered if that is taken.

        Raises
        ------
        ModelError
            The name is taken, or an argument is invalid.

        Examples
        --------
        A sampled integral controller:

        >>> import dae_hybrid as dh
        >>> m = dh.HybridModel("loop")
        >>> gain, x, u = m.parameter("gain", 0.5), m.differential("x"), m.discrete("u", initial=0.0)
        >>> run = m.mode("run", ode={x: u - x})
        >>> ticks = m.clock(0.1)
        >>> m.update(ticks, {u: u + gain * 0.1 * (1 - x)})
        >>> m.initial(run, {x: 0.0})
        >>> round(float(dh.simulate(m.build(), (0, 30), rtol=1e-8)(30)["x"]), 6)
        1.0
        """
        if isinstance(factor, bool) or not isinstance(factor, int) or factor < 1:
            raise ModelError(f"factor of a clock must be a positive integer, got {shown(factor)}.")
        if isinstance(period, Clock):
            own = self._clock(period)
            if offset is not None:
                raise ModelError("A clock that follows another one has its offset.", remedy="Leave offset= out.")
            time, first = factor * own.period, own.offset
        else:
            if factor != 1:
                raise ModelError("factor= needs another clock.", remedy="Pass it in place of the period.")
            time = expression("period of a clock", period, 1)
            first = expression("offset of a clock", 0.0 if offset is None else offset, 1)
        name = free_name("clock", self.clocks) if name is None else name
        checked_name("clock", name)
        if name in self.clocks:
            raise ModelError(f"Clock '{name}' is declared twice.")
        self.clocks[name] = Clock(name, time, first)
        return self.clocks[name]

    def update(self, clock: Clock | str, values: Mapping[Any, Any]) -> None:
        """Update discrete states at the ticks of a clock, in all modes.

        The right-hand sides are evaluated before the tick; several calls for one clock are one update. Clocks that tick
        at the same instant update in order of their first call. Events have the name of the clock.

        Parameters
        ----------
        clock : Clock or str
        values : mapping of discrete state to expression

        Raises
        ------
        ModelError
            A state is updated twice by one clock, or an argument is not of this model.
        """
        own = self._clock(clock)
        given = self.assignments(values, f"update at '{own.name}'", ("memory",), rest="kept")
        stated = self.transitions.get(own.name)
        if stated is None:
            stated = self.transition(ALL, SAME, every=own, memory=given, name=own.name)
        elif not (isinstance(stated.trigger, PeriodicTrigger) and stated.trigger.clock == own.name):
            raise ModelError(f"The updates at clock '{own.name}' need its name, which a transition has.")
        elif twice := [name for name in given if name in stated.memory]:
            raise ModelError(f"Clock '{own.name}' updates {', '.join(twice)} twice.", variables=twice)
        self.transitions[own.name] = replace(stated, memory=stated.memory | given)

    def _clock(self, clock: Any) -> Clock:
        found = self.clocks.get(clock if isinstance(clock, str) else getattr(clock, "name", ""))
        if found is None or (isinstance(clock, Clock) and found is not clock):
            raise ModelError(
                f"{clock!r} is not a clock of model '{self.name}'.",
                remedy=f"Clocks: {', '.join(self.clocks) or 'none'}.",
            )
        return found

    def _check_projection(self, name: str, moved: tuple[Declaration, ...], metric: Any, *, explicit: bool) -> None:
        for declared in moved:
            declared.require(STATES, f"project of transition '{name}'")
        if len(set(moved)) < len(moved):
            raise ModelError(f"project of transition '{name}' names a variable twice.")
        if moved and not explicit:
            raise ModelError(f"Transition '{name}' has both project= and an implicit reset: state one of them.")
        if metric is not None and not moved:
            raise ModelError(f"Transition '{name}' has a metric= without project=.")

    # -- lookups ------------------------------------------------------------------------------------

    def _transition(self, key: Any, functional: str) -> str:
        name = key if isinstance(key, str) else getattr(key, "name", None)
        if name not in self.transitions or (isinstance(key, Transition) and self.transitions[name] is not key):
            raise ModelError(
                f"at_events of functional '{functional}': {key!r} is not a transition of model '{self.name}'.",
                remedy=f"Transitions: {', '.join(self.transitions) or 'none'}.",
            )
        return name

    def _mode(self, mode: Mode | str, where: str) -> Mode:
        found = self.modes.get(mode if isinstance(mode, str) else getattr(mode, "name", ""))
        if found is None or (isinstance(mode, Mode) and found is not mode):
            raise ModelError(
                f"{where} {mode!r} is not a mode of model '{self.name}'.", remedy=f"Modes: {', '.join(self.modes)}."
            )
        return found
