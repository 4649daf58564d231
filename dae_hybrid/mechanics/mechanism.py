"""The statement of a mechanical system."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import casadi as ca

from dae_hybrid.errors import ModelError
from dae_hybrid.mechanics.bodies import Body, Tree
from dae_hybrid.mechanics.declared import (
    Constraint,
    Coordinate,
    Event,
    Impact,
    InitialConditions,
    Restitution,
    Share,
    VelocityJump,
    shown_velocity,
)
from dae_hybrid.mechanics.formulations import Formulation
from dae_hybrid.mechanics.planar import Link, Planar
from dae_hybrid.progress import Report
from dae_hybrid.statement.declarations import Direction, OnEntry, Statement
from dae_hybrid.statement.expressions import checked_name, expression, free_name, items
from dae_hybrid.statement.model import HybridModel
from dae_hybrid.statement.symbols import Symbols
from dae_hybrid.tables import counted

if TYPE_CHECKING:
    from dae_hybrid.system.system import HybridSystem


@dataclass(eq=False)
class MechanicalMode(Statement, Planar):
    """The additions to a mechanism in one of its modes; created by `Mechanism.mode`."""

    name: str
    owner: Mechanism = field(repr=False)
    released: tuple[str, ...]
    share: Share = field(default_factory=Share, repr=False)

    @property
    def mechanism(self) -> Mechanism:
        """The mechanism to which the mode belongs."""
        return self.owner


@dataclass(repr=False)
class Mechanism(Symbols, Planar, Tree):
    """A mechanism: coordinates, masses, forces, constraints, and events that change them.

    `build` converts it to a `HybridSystem` in any formulation (Corner, Sandu and Sandu 2019 and 2020), to which all
    other functions of this library apply.

    Examples
    --------
    A pendulum of two coordinates that hits a wall:

    >>> import dae_hybrid as dh
    >>> from dae_hybrid.mechanics import Mechanism, Penalty, Restitution
    >>> mech = Mechanism("pendulum")
    >>> L, e = mech.parameter("L", 1.0), mech.parameter("e", 0.8)
    >>> bob = mech.point("")
    >>> mech.point_mass(bob, 2.0)
    >>> mech.gravity(9.81)
    >>> tension = mech.constraint("rod", bob.x**2 + bob.y**2 - L**2)
    >>> swing = mech.mode("swing")
    >>> hit = mech.event(swing, swing, guard=bob.x, direction="falling", impact=Restitution(e))
    >>> mech.initial(swing, {bob.x: 0.6 * L, bob.y: -0.8 * L})
    >>> mech.functional("height", terminal=bob.y)
    >>> system = mech.build()
    >>> asa = dh.adjoint_gradient(system, (0, 1), "height", rtol=1e-9)
    >>> other = dh.adjoint_gradient(mech.build(Penalty(alpha=1e9)), (0, 1), "height", rtol=1e-9)
    >>> bool(abs(asa.gradient - other.gradient).max() < 1e-5)
    True
    """

    coordinates: dict[str, Coordinate] = field(default_factory=dict, init=False)
    bodies: dict[str, Body] = field(default_factory=dict, init=False)
    modes: dict[str, MechanicalMode] = field(default_factory=dict, init=False)
    events: dict[str, Event] = field(default_factory=dict, init=False)
    functionals: dict[str, dict[str, Any]] = field(default_factory=dict, init=False)
    states: dict[str, tuple[ca.MX, ca.MX]] = field(default_factory=dict, init=False)  # rate and initial value
    impulses: dict[str, ca.MX] = field(default_factory=dict, init=False)
    start: InitialConditions | None = field(default=None, init=False)
    share: Share = field(default_factory=Share, init=False)
    links: list[Link] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._owners: dict[int, Coordinate] = {}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore from a pickle, whose symbols are new objects."""
        self.__dict__ |= state
        owned = ((c, s) for c in self.coordinates.values() for s in (c.q, c.v, c.a))
        self._owners = {s.__hash__(): c for c, s in owned}

    def __repr__(self) -> str:
        parts = ((self.coordinates, "coordinate"), (self.modes, "mode"), (self.events, "event"))
        return f"<Mechanism '{self.name}': {', '.join(counted(len(own), what) for own, what in parts)}>"

    @property
    def mechanism(self) -> Mechanism:
        """The mechanism itself, to which `Components` add."""
        return self

    # -- symbols ----------------------------------------------------------------------------------------

    def coordinate(
        self, name: str, *, velocity: str = "", acceleration: str = "", size: int = 1, unit: str = "",
        description: str = "",
    ) -> ca.MX:  # fmt: skip
        """Declare a generalised coordinate with its velocity and acceleration.

        Parameters
        ----------
        name : str
        velocity, acceleration : str
            Names of these variables; ``v_<name>`` and ``a_<name>`` by default.
        size : int
            Length of a vector of coordinates.

        Returns
        -------
        ca.MX, shape (size,)
            The coordinate; `velocity` and `acceleration` give the other two.
        """
        per = f"{unit}/s" * bool(unit)
        coordinate = Coordinate(
            name,
            self.differential(name, size=size, unit=unit, description=description),
            self.differential(velocity or f"v_{name}", size=size, unit=per),
            self.algebraic(acceleration or f"a_{name}", size=size, unit=f"{unit}/s^2" * bool(unit)),
        )
        self.coordinates[name] = coordinate
        self._owners |= {s.__hash__(): coordinate for s in (coordinate.q, coordinate.v, coordinate.a)}
        return coordinate.q

    def coordinate_of(self, symbol: Any, where: str) -> Coordinate:
        """The coordinate with this position, velocity or acceleration, given as a symbol or name."""
        symbol = self.lookup(symbol, where).symbol
        if symbol.__hash__() not in self._owners:
            raise ModelError(
                f"{where}: '{symbol.name()}' is not a coordinate of mechanism '{self.name}'.",
                remedy=f"Coordinates: {', '.join(self.coordinates) or 'none'}.",
            )
        return self._owners[symbol.__hash__()]

    def velocity(self, coordinate: Any) -> ca.MX:
        """The velocity of a coordinate."""
        return self.coordinate_of(coordinate, "velocity()").v

    def acceleration(self, coordinate: Any) -> ca.MX:
        """The acceleration of a coordinate, for costs and guards."""
        return self.coordinate_of(coordinate, "acceleration()").a

    def der(self, variable: ca.MX | str) -> ca.MX:
        """The time derivative: the velocity of a coordinate, the acceleration of a velocity, the rate of a signal."""
        for owner in self.coordinates.values():
            for of, rate in ((owner.q, owner.v), (owner.v, owner.a)):
                if variable is of or (isinstance(variable, ca.MX) and variable.__hash__() == of.__hash__()):
                    return rate
        return super().der(variable)

    def state(
        self, name: str, rate: Any, *, initial: Any = 0.0, size: int = 1, unit: str = "", description: str = ""
    ) -> ca.MX:
        """Declare an additional state by its rate in every mode: a controller, or the quadrature ``z' = g`` of a cost.

        Parameters
        ----------
        name : str
        rate : expression, or callable that returns one for the state
            ``lambda u: (5.0 - u) / tau`` if the rate depends on the state itself.
        initial : expression in parameters
        size : int
            Length; that of `rate` if it is an expression.

        Returns
        -------
        ca.MX, shape (size,)
            The state. With a quadrature z, ``fsa[name]`` is Z = dz/drho along the run (Corner, Sandu and Sandu 2020,
            eq. 8d).
        """
        given = None if callable(rate) else expression(f"rate of '{name}'", rate, None)
        size = size if given is None else given.numel()
        symbol = self.differential(name, size=size, unit=unit, description=description)
        value = expression(f"rate of '{name}'", rate(symbol), size) if given is None else given
        self.states[name] = (value, expression(f"initial value of '{name}'", initial, size))
        return symbol

    def impulse(self, of: Any) -> ca.MX:
        """The impulse of a constraint (by name), or of the impact of an event, for costs at events.

        For a constraint ``M (v+ - v-) = -Phi_q^T impulse``, one per entry. For an event the impulse along the normal
        (`Restitution`), or those on the independent velocities (`VelocityJump`), in their order.
        """
        if isinstance(of, Event):
            name, size = of.name, self._impulse_size(of)
        else:
            known = self.all_constraints()
            if of not in known:
                raise ModelError(
                    f"impulse(): there is no constraint {of!r}.", remedy=f"Constraints: {', '.join(known) or 'none'}."
                )
            name, size = str(of), known[of].phi.numel()
        if name not in self.impulses:
            self.impulses[name] = self.unknown(f"impulse_{name}", size=size)
        return self.impulses[name]

    def _impulse_size(self, event: Event) -> int:
        if isinstance(event.impact, Restitution):
            return 1
        if isinstance(event.impact, VelocityJump):
            return sum(speed.numel() for speed, _ in self.velocities(event.impact.values, "impulse()"))
        raise ModelError(
            f"The impact of event '{event.name}' has no impulse of its own: ask for that of a constraint, by name."
        )

    def velocities(self, values: Any, where: str) -> list[tuple[ca.MX, ca.MX]]:
        """Velocities, of coordinates by symbol or name or any expressions, and the values given for them."""
        found = []
        for key, value in items(where, values):
            speed = key if isinstance(key, ca.MX) and not key.is_symbolic() else self.lookup(key, where).symbol
            found.append((speed, expression(f"{where}, {shown_velocity(speed)}", value, speed.numel())))
        if not found:
            raise ModelError(f"{where} gives no velocity.", remedy="Give one for every degree of freedom.")
        return found

    def all_constraints(self) -> dict[str, Constraint]:
        """Every constraint of every mode, by name."""
        shares = [self.share, *(mode.share for mode in self.modes.values())]
        return {name: c for share in shares for name, c in share.constraints.items()}

    # -- modes and events ---------------------------------------------------------------------------------

    def mode(self, name: str, *, without: Sequence[str] | str = ()) -> MechanicalMode:
        """Declare a mode, whose `constraint`, `force` and `inertia` extend the mechanism.

        Parameters
        ----------
        name : str
        without : sequence of str
            Constraints of the mechanism that do not hold in this mode: released joints.
        """
        checked_name("mode", name)
        if name in self.modes:
            raise ModelError(f"Mode '{name}' is declared twice.")
        released = (without,) if isinstance(without, str) else tuple(without)
        self.modes[name] = MechanicalMode(name, self, released)
        return self.modes[name]

    def event(
        self,
        source: MechanicalMode | str,
        target: MechanicalMode | str | None,
        *,
        guard: Any = None,
        at: Any = None,
        every: Any = None,
        direction: Direction = "both",
        impact: Impact | None = None,
        reset: Mapping[Any, Any] | None = None,
        memory: Mapping[Any, Any] | None = None,
        on_entry: OnEntry = "wait",
        resolution: float | None = None,
        when: Any = None,
        priority: Any = None,
        name: str | None = None,
    ) -> Event:
        """Declare an event.

        Parameters
        ----------
        source, target, guard, at, every, direction, on_entry, resolution, when, priority, name
            As in `HybridModel.transition`; guards and conditions may use velocities, accelerations, multipliers, memory
            and time.
        impact : Impact, optional
            The impact law: `Restitution`, `VelocityJump`, `Inelastic` or `Continuous`. By default `Inelastic` if the
            target has constraints that need not hold before the event, or that the event's memory or reset changes,
            and `Continuous` otherwise.
        reset : mapping of coordinate, velocity or state to expression, optional
            New values in terms of the values before, for a change of coordinates. The impact acts on them.
        memory : mapping of memory to expression, optional
            Updates of memory, such as the place of a new foothold.
        """
        start = self._mode(source, "source").name
        end = None if target is None else self._mode(target, "target").name
        if name is None:
            name = free_name(f"{start}->{end or 'end'}", self.events)
        checked_name("event", name)
        if name in self.events:
            raise ModelError(f"Event '{name}' is declared twice.")
        if impact is not None and not isinstance(impact, Impact):
            raise ModelError(f"impact of event '{name}' must be an Impact, such as Restitution(0.8), got {impact!r}.")
        if end is None and (impact or reset or memory):
            raise ModelError(f"Event '{name}' ends the run: impact=, reset= and memory= have no meaning.")
        words = (("guard", guard), ("at", at), ("every", every), ("when", when), ("priority", priority))
        event = Event(
            name,
            start,
            end,
            {key: value for key, value in words if value is not None},
            direction,
            on_entry,
            resolution,
            impact,
            self.assignments(reset, f"reset of event '{name}'", ("differential",), rest="kept"),
            self.assignments(memory, f"memory of event '{name}'", ("memory",), rest="kept"),
        )
        self.events[name] = event
        return event

    def initial(
        self,
        mode: MechanicalMode | str,
        positions: Mapping[Any, Any],
        velocities: Mapping[Any, Any] | None = None,
        *,
        guess: Mapping[Any, Any] | None = None,
        project: bool = False,
    ) -> None:
        """Declare the initial conditions.

        Parameters
        ----------
        mode : MechanicalMode or str
        positions : mapping of coordinate to expression in parameters
            Positions not given follow from the constraints.
        velocities : mapping of velocity to expression in parameters, optional
            By default the mechanism is at rest. Velocities not given follow from the constraints.
        guess : mapping of coordinate to expression in parameters, optional
            Initial guess of Newton's method for positions not given, which selects the assembly configuration. Make it
            an expression in parameters that change the mechanism much.
        project : bool
            Move all given positions and velocities to the nearest ones that satisfy the constraints. Otherwise values
            that violate them are refused when a run starts.
        """
        if self.start is not None:
            raise ModelError("initial() is called twice.", remedy="A mechanism has one initial mode.")
        begin = self._mode(mode, "initial mode").name
        given = self.assignments(positions, "positions of initial()", ("differential",))
        moving = None
        if velocities is not None:
            moving = self.assignments(velocities, "velocities of initial()", ("differential",))
        places = {c.name for c in self.coordinates.values()}
        speeds = {c.v.name() for c in self.coordinates.values()}
        for names, what, legal in ((given, "positions", places), (moving or {}, "velocities", speeds)):
            wrong = [name for name in names if name not in legal]
            if wrong:
                raise ModelError(f"{what} of initial(): {', '.join(wrong)} is none.", variables=wrong)
        starts = self.assignments(guess, "guess of initial()", ("differential",))
        self.start = InitialConditions(begin, given, moving, starts, project)

    def functional(
        self,
        name: str,
        *,
        integrand: Any = None,
        terminal: Any = None,
        at_times: Mapping[Any, Any] | Sequence[tuple[Any, Any]] | None = None,
        at_events: Mapping[Any, Any] | None = None,
    ) -> None:
        """Declare a cost as in `HybridModel.functional`.

        It may use accelerations, multipliers and expressions of them (Corner, Sandu and Sandu 2020, eq. 2, 3 and 28),
        and impulses at events. One backward sweep computes the gradients of all entries of a vector.
        """
        checked_name("functional", name)
        if name in self.functionals:
            raise ModelError(f"Functional '{name}' is declared twice.")
        costs = items(f"at_events of functional '{name}'", at_events)
        fired = {key.name if isinstance(key, Event) else key: value for key, value in costs}
        self.functionals[name] = {
            "integrand": integrand,
            "terminal": terminal,
            "at_times": at_times,
            "at_events": fired or None,
        }

    def _mode(self, mode: Any, where: str) -> MechanicalMode:
        found = self.modes.get(mode if isinstance(mode, str) else getattr(mode, "name", ""))
        if found is None or (isinstance(mode, MechanicalMode) and found is not mode):
            raise ModelError(
                f"{where} {getattr(mode, 'name', mode)!r} is not a mode of mechanism '{self.name}'.",
                remedy=f"Modes: {', '.join(self.modes) or 'none'}.",
            )
        return found

    # -- build --------------------------------------------------------------------------------------------

    def model(self, formulation: Formulation | None = None) -> HybridModel:
        """The mechanism as a `HybridModel` with the same symbols, which may be extended.

        The default formulation is `Index2` for mechanisms with constraints, `Unconstrained` for others.

        Raises
        ------
        ModelError
            The statement is incomplete or contradictory.
        FormulationError
            Constraints are redundant or inconsistent, or the initial configuration is singular; the error names them.
        """
        from dae_hybrid.mechanics.lowering import Lowering

        return Lowering(self, formulation).model()

    def build(
        self,
        formulation: Formulation | None = None,
        *,
        native: bool | Literal["later"] = True,
        eliminate: bool = True,
        index2: Literal["reduced", "direct"] = "reduced",
        kinks: Literal["integrate", "events"] = "integrate",
        relations: Literal["slide", "cross"] = "slide",
        progress: Report = False,
    ) -> HybridSystem:
        """Convert to a formulation and build; other arguments and errors are those of `HybridModel.build`."""
        return self.model(formulation).build(
            native=native, eliminate=eliminate, index2=index2, kinks=kinks, relations=relations, progress=progress
        )
