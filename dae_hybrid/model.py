"""What a user declares: symbols, modes, transitions, functionals. No numerics."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import casadi as ca
import numpy as np
from numpy.typing import ArrayLike, NDArray

from dae_hybrid.declarations import DIRECTIONS, Declaration, Direction, Functional, Kind, Mode, OnEntry, Transition
from dae_hybrid.errors import ModelError, UnsupportedError

if TYPE_CHECKING:
    from dae_hybrid.system import HybridSystem


@dataclass
class HybridModel:
    """A hybrid DAE system, stated as on paper.

    Declare symbols (`parameter`, `differential`, `algebraic`, `memory`), combine them to CasADi
    expressions, give each mode its equations, say what makes the system change mode, and `build`.
    In equations `mode(ode={y: f, ...}, algebraic=[k, ...])` states y' = f and 0 = k
    (Serban and Recuero 2019, eq. 22).

    Examples
    --------
    A ball that bounces:

    >>> import dae_hybrid as dh
    >>> m = dh.HybridModel("ball")
    >>> g, e = m.parameter("g", 9.81), m.parameter("e", 0.8)
    >>> y, v = m.differential("y"), m.differential("v")
    >>> flight = m.mode("flight", ode={y: v, v: -g})
    >>> bounce = m.transition(flight, flight, guard=y, direction="falling", reset={v: -e * v})
    >>> m.initial(flight, {y: 1.0, v: 0.0})
    >>> m.functional("height", terminal=y)
    >>> sol = dh.simulate(m.build(), (0, 1), rtol=1e-10)
    >>> len(sol.events), round(sol.functionals["height"], 6)
    (1, 0.468004)
    """

    name: str
    time: ca.MX = field(default_factory=lambda: ca.MX.sym("t"), init=False)
    declarations: dict[str, Declaration] = field(default_factory=dict, init=False)
    modes: dict[str, Mode] = field(default_factory=dict, init=False)
    transitions: dict[str, Transition] = field(default_factory=dict, init=False)
    functionals: dict[str, Functional] = field(default_factory=dict, init=False)
    initial_mode: Mode | None = field(default=None, init=False)
    initial_values: dict[str, ca.MX] = field(default_factory=dict, init=False)
    rates: dict[str, ca.MX] = field(default_factory=dict, init=False)
    posts: dict[str, ca.MX] = field(default_factory=dict, init=False)

    # -- symbols ------------------------------------------------------------------------------------

    def parameter(
        self, name: str, value: ArrayLike, *, size: int | None = None, unit: str = "", description: str = ""
    ) -> ca.MX:
        """Declare a parameter with its nominal value; an array value makes a vector of its length."""
        nominal = self._numbers(f"parameter '{name}'", value, None if size is None else self._size(name, size))
        return self._declare(name, "parameter", nominal.size, unit, description, value=nominal)

    def differential(self, name: str, *, size: int = 1, unit: str = "", description: str = "") -> ca.MX:
        """Declare a state whose time derivative the modes give."""
        return self._declare(name, "differential", size, unit, description)

    def algebraic(
        self, name: str, *, size: int = 1, guess: ArrayLike = 0.0, unit: str = "", description: str = ""
    ) -> ca.MX:
        """Declare an algebraic variable; `guess` is where Newton's method starts at the initial time."""
        start = self._numbers(f"guess of '{name}'", guess, self._size(name, size))
        return self._declare(name, "algebraic", size, unit, description, value=start)

    def memory(
        self,
        name: str,
        *,
        of: ca.MX | None = None,
        initial: Any = None,
        size: int = 1,
        unit: str = "",
        description: str = "",
    ) -> ca.MX:
        """Declare a memory state: constant within a mode, updated by transitions.

        Parameters
        ----------
        name : str
            Its name.
        of : symbol, optional
            Freeze this differential or algebraic variable at entry into a mode: SR's ``y*``, ``z*``
            (Serban and Recuero 2019, section 4). Without it, transitions update the memory by their
            ``memory=`` argument.
        initial : number, array or expression in parameters
            Value in the initial mode. May be left out with `of` a differential variable: then it is
            that variable's initial value.
        size : int
            Length, taken from `of` where given.
        """
        frozen, size = None, self._size(name, size)
        if of is not None:
            frozen = self.lookup(of, f"of= of memory '{name}'")
            if frozen.kind not in ("differential", "algebraic"):
                raise ModelError(
                    f"Memory '{name}' must be of a differential or algebraic variable, not a {frozen.kind}."
                )
            size = frozen.size
        if initial is None and (frozen is None or frozen.kind == "algebraic"):
            raise ModelError(
                f"Memory '{name}' needs an initial value.",
                remedy="Give initial=, a number or an expression in parameters.",
            )
        start = None if initial is None else self._expression(f"initial value of memory '{name}'", initial, size)
        return self._declare(name, "memory", size, unit, description, initial=start, of=frozen)

    def der(self, variable: ca.MX | str) -> ca.MX:
        """The time derivative of a differential variable, for guards, resets and functionals."""
        declared = self.lookup(variable, "der()")
        if declared.kind != "differential":
            raise ModelError(f"der() needs a differential variable; '{declared.name}' is a {declared.kind}.")
        return self.rates.setdefault(declared.name, ca.MX.sym(f"der({declared.name})", declared.size))

    def post(self, variable: ca.MX | str) -> ca.MX:
        """The value of a variable just after a transition, for memory updates."""
        declared = self.lookup(variable, "post()")
        if declared.kind not in ("differential", "algebraic"):
            raise ModelError(
                f"post() needs a differential or algebraic variable; '{declared.name}' is a {declared.kind}."
            )
        return self.posts.setdefault(declared.name, ca.MX.sym(f"post({declared.name})", declared.size))

    def pre(self, variable: ca.MX | str) -> ca.MX:
        """The value of a variable just before a transition: the plain symbol."""
        return self.lookup(variable, "pre()").symbol

    # -- behaviour ----------------------------------------------------------------------------------

    def mode(self, name: str, *, ode: Mapping[Any, Any], algebraic: Sequence[Any] = (), **other: Any) -> Mode:
        """Declare a mode by its equations ``y' = f`` (`ode`) and ``0 = k`` (`algebraic`)."""
        if other:
            raise UnsupportedError(
                f"Mode '{name}': {', '.join(sorted(other))}= is not available.",
                remedy="State the mode in the form ode={y: f}, algebraic=[k].",
            )
        if name in self.modes:
            raise ModelError(f"Mode '{name}' is declared twice.")
        if not ode:
            raise ModelError(f"Mode '{name}' has no differential equation.")
        rows = [self._expression(f"algebraic equation {i} of mode '{name}'", k, None) for i, k in enumerate(algebraic)]
        mode = Mode(
            name,
            self._assignments(ode, f"ode of mode '{name}'", ("differential",)),
            ca.vertcat(*(ca.vec(k) for k in rows)) if rows else ca.MX(0, 1),
        )
        self.modes[name] = mode
        return mode

    def transition(
        self,
        source: Mode | str,
        target: Mode | str | None,
        *,
        guard: Any = None,
        at: Any = None,
        every: Any = None,
        direction: Direction = "both",
        reset: Mapping[Any, Any] | None = None,
        memory: Mapping[Any, Any] | None = None,
        on_entry: OnEntry = "wait",
        name: str | None = None,
    ) -> Transition:
        """Declare a transition.

        Parameters
        ----------
        source, target : Mode or str
            Where it leads from and to; ``target=None`` ends the run.
        guard : scalar expression
            Fires when it crosses zero in `direction`. It is looked at after every step of the integrator: one that
            passes through zero and back within a step goes unseen, so set ``max_step`` where a guard moves faster
            than the state. In pre-transition quantities: states, algebraic
            variables, derivatives (`der`), memory, parameters, time.
        at, every : expression in parameters
            Fires at a time, or at start time + k period, k = 1, 2, ...; exactly one of `guard`,
            `at`, `every` is given.
        direction : {"rising", "falling", "both"}
            Direction of the crossing.
        reset : mapping of variable to expression, optional
            New values of differential variables in terms of the old ones; what is not named is continuous.
        memory : mapping of memory to expression, optional
            Updates of memory declared without ``of=``; may use `post`.
        on_entry : {"wait", "fire", "error"}
            What happens when the guard is already past its threshold on entry into `source`: wait
            for the next crossing, fire at once, or raise `GuardPassedError`.
        name : str, optional
            Default ``"source->target"``, numbered where that is taken.
        """
        start, end = self._mode(source, "source"), None if target is None else self._mode(target, "target")
        base = f"{start.name}->{end.name if end else 'end'}"
        if name is None:
            name = next(n for n in (base, *(f"{base}#{i}" for i in range(2, 10**6))) if n not in self.transitions)
        elif name in self.transitions:
            raise ModelError(f"Transition '{name}' is declared twice.")
        given = [key for key, value in (("guard", guard), ("at", at), ("every", every)) if value is not None]
        if len(given) != 1:
            raise ModelError(
                f"Transition '{name}' needs exactly one of guard=, at=, every=; got {', '.join(given) or 'none'}."
            )
        if direction not in DIRECTIONS:
            raise ModelError(f"Transition '{name}': direction must be rising, falling or both, got {direction!r}.")
        if on_entry not in ("wait", "fire", "error"):
            raise ModelError(f"Transition '{name}': on_entry must be wait, fire or error, got {on_entry!r}.")
        if reset is not None and not isinstance(reset, Mapping):
            raise UnsupportedError(
                f"Transition '{name}': implicit resets are not available.", remedy="Give reset={variable: expression}."
            )
        trigger = {
            key: self._expression(f"{key} of transition '{name}'", value, 1)
            for key, value in (("guard", guard), ("at", at), ("every", every))
            if value is not None
        }
        transition = Transition(
            name,
            start,
            end,
            trigger.get("guard"),
            trigger.get("at"),
            trigger.get("every"),
            DIRECTIONS[direction],
            self._assignments(reset or {}, f"reset of transition '{name}'", ("differential",)),
            self._assignments(memory or {}, f"memory of transition '{name}'", ("memory",)),
            on_entry,
        )
        for key in transition.memory:
            if self.declarations[key].of is not None:
                raise ModelError(f"Transition '{name}' updates memory '{key}', which already is of= a variable.")
        self.transitions[name] = transition
        return transition

    def initial(self, mode: Mode | str, values: Mapping[Any, Any]) -> None:
        """Start in `mode` with these values of its differential variables, numbers or expressions in parameters.

        Algebraic variables follow from the mode's equations.
        """
        if self.initial_mode is not None:
            raise ModelError("initial() is called twice.", remedy="A model has one initial mode.")
        self.initial_values = self._assignments(values, "initial()", ("differential",))
        self.initial_mode = self._mode(mode, "initial mode")

    def functional(self, name: str, *, integrand: Any = None, terminal: Any = None) -> None:
        """Declare a functional, scalar or vector: the integral of `integrand` plus `terminal` at the end of the run.

        Both may use states, algebraic variables, derivatives, memory, parameters and time
        (Serban and Recuero 2019, eq. 7, 29).
        """
        if name in self.functionals:
            raise ModelError(f"Functional '{name}' is declared twice.")
        parts = [
            None if part is None else ca.vec(self._expression(f"{kind} of functional '{name}'", part, None))
            for kind, part in (("integrand", integrand), ("terminal", terminal))
        ]
        sizes = {part.numel() for part in parts if part is not None}
        if not sizes:
            raise ModelError(f"Functional '{name}' needs an integrand, a terminal value, or both.")
        if len(sizes) > 1 or 0 in sizes:
            raise ModelError(
                f"Functional '{name}': integrand and terminal must have one common size, got {sorted(sizes)}."
            )
        self.functionals[name] = Functional(name, sizes.pop(), parts[0], parts[1])

    def build(self, *, native: bool = True, eliminate: bool = True) -> HybridSystem:
        """Check the model, differentiate it and compile it.

        Parameters
        ----------
        native : bool
            Compile to machine code (default). False runs the same functions interpreted.
        eliminate : bool
            Substitute algebraic variables that their equations give explicitly (default), so that the mode
            is integrated as an ODE. False integrates it as the DAE that was written. Results have the same form.

        Raises
        ------
        ModelError
            The declarations do not make a model; names the one at fault.
        FormulationError
            A mode's equations are not square or not of index 0 or 1.
        """
        from dae_hybrid.build import build_system

        return build_system(self, native=native, eliminate=eliminate)

    # -- lookups ------------------------------------------------------------------------------------

    def lookup(self, variable: Any, where: str) -> Declaration:
        """The declaration of a symbol or name."""
        if isinstance(variable, str):
            if variable in self.declarations:
                return self.declarations[variable]
        elif isinstance(variable, ca.MX) and variable.is_symbolic():
            found = self.declarations.get(variable.name())
            if found is not None and found.symbol.__hash__() == variable.__hash__():
                return found
        known = ", ".join(self.declarations) or "none"
        raise ModelError(f"{where}: {variable} is not declared in model '{self.name}'.", remedy=f"Declared: {known}.")

    def of_kind(self, kind: Kind) -> list[Declaration]:
        """Declarations of one kind, in order."""
        return [d for d in self.declarations.values() if d.kind == kind]

    def _mode(self, mode: Mode | str, where: str) -> Mode:
        found = self.modes.get(mode if isinstance(mode, str) else getattr(mode, "name", ""))
        if found is None or (isinstance(mode, Mode) and found is not mode):
            raise ModelError(
                f"{where} {mode!r} is not a mode of model '{self.name}'.", remedy=f"Modes: {', '.join(self.modes)}."
            )
        return found

    def _declare(self, name: str, kind: Kind, size: int, unit: str, description: str, **more: Any) -> ca.MX:
        if not isinstance(name, str) or not name:
            raise ModelError(f"A {kind} needs a non-empty name, got {name!r}.")
        if name in self.declarations or name == "t":
            raise ModelError(f"The name '{name}' is taken.", remedy="Names are unique among all symbols; 't' is time.")
        size = self._size(name, size)
        symbol = ca.MX.sym(name, size)
        self.declarations[name] = Declaration(name, kind, size, symbol, unit=unit, description=description, **more)
        return symbol

    def _assignments(self, values: Mapping[Any, Any], where: str, kinds: tuple[str, ...]) -> dict[str, ca.MX]:
        if not isinstance(values, Mapping):
            raise ModelError(f"{where} must be a mapping of variable to expression, got {type(values).__name__}.")
        found: dict[str, ca.MX] = {}
        for key, value in values.items():
            declared = self.lookup(key, where)
            if declared.kind not in kinds:
                raise ModelError(
                    f"{where}: '{declared.name}' is a {declared.kind} variable, expected {' or '.join(kinds)}."
                )
            if declared.name in found:
                raise ModelError(f"{where}: '{declared.name}' is given twice.")
            found[declared.name] = self._expression(f"{where}, '{declared.name}'", value, declared.size)
        return found

    @staticmethod
    def _size(name: str, size: Any) -> int:
        if isinstance(size, bool) or not isinstance(size, int | np.integer) or size < 1:
            raise ModelError(f"size of '{name}' must be a positive integer, got {size!r}.")
        return int(size)

    @staticmethod
    def _numbers(what: str, value: ArrayLike, size: int | None) -> NDArray[np.float64]:
        try:
            array = np.array(value, dtype=float, ndmin=1)
        except (TypeError, ValueError):
            raise ModelError(f"{what} must be a number or an array of numbers, got {value!r}.") from None
        if array.ndim != 1 or array.size == 0:
            raise ModelError(f"{what} must be a number or a non-empty one-dimensional array, got shape {array.shape}.")
        if size is not None:
            if array.size not in (1, size):
                raise ModelError(f"{what} has {array.size} values, expected {size}.")
            array = np.broadcast_to(array, (size,)).copy()
        if not np.all(np.isfinite(array)):
            raise ModelError(f"{what} must be finite, got {value!r}.")
        return array

    @staticmethod
    def _expression(what: str, value: Any, size: int | None) -> ca.MX:
        if isinstance(value, ca.SX):
            raise ModelError(f"{what} is a CasADi SX expression; the symbols of a model are MX.")
        try:
            if isinstance(value, list | tuple) and any(isinstance(v, ca.MX) for v in value):
                value = ca.vertcat(*value)
            expression = value if isinstance(value, ca.MX) else ca.MX(ca.DM(np.array(value, dtype=float)))
        except Exception as reason:
            raise ModelError(
                f"{what} must be a number, an array or an expression of this model, got {value!r}."
            ) from reason
        if size is not None and expression.numel() != size:
            if expression.numel() != 1:
                raise ModelError(f"{what} has {expression.numel()} entries, expected {size}.")
            expression = ca.repmat(expression, size, 1)
        if expression.is_constant() and not all(math.isfinite(v) for v in np.asarray(ca.evalf(expression)).ravel()):
            raise ModelError(f"{what} must be finite, got {value!r}.")
        return ca.densify(ca.vec(expression))
