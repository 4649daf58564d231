"""The nominal initial configuration, and the checks of constraints and masses before a run."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property

import casadi as ca
import numpy as np

from dae_hybrid.errors import FormulationError
from dae_hybrid.mechanics.declared import InitialConditions
from dae_hybrid.mechanics.equations import EquationsOfMotion
from dae_hybrid.mechanics.kinematics import Motion
from dae_hybrid.numerics.arrays import Array

#: singular values of Phi_q with rows of length one that are below this count as zero
RANK = 1e-8
#: residuals of constraints, divided by the size of their derivatives, that are below this count as zero
MET = 1e-8
#: relative displacement of a configuration that distinguishes singular configurations from redundant constraints
NEARBY = 1e-2


@dataclass(frozen=True, eq=False)
class Configuration:
    """Positions at the start, at nominal parameters and time 0."""

    equations: EquationsOfMotion
    start: InitialConditions

    @cached_property
    def _fixed(self) -> tuple[list[ca.MX], list[ca.DM]]:
        """Symbols with a fixed value (time, parameters, memory), and their values."""
        mech = self.equations.mechanism
        symbols, values = [mech.time], [ca.DM(0)]
        for d in mech.of_kind("parameter"):
            symbols.append(d.symbol)
            values.append(ca.DM(d.start))
        for d in mech.of_kind("memory"):
            number = ca.DM.zeros(d.size)
            if d.initial is not None:
                with suppress(RuntimeError):  # of a state, or the coefficients of a signal
                    number = ca.evalf(ca.substitute(d.initial, ca.vertcat(*symbols), ca.vertcat(*values)))
            symbols.append(d.symbol)
            values.append(number)
        return symbols, values

    def evaluate(self, expressions: list[ca.MX], q: Array) -> list[Array]:
        """Values of expressions in coordinates, parameters, time and memory."""
        return self._evaluator(expressions)(q)

    def _evaluator(self, expressions: list[ca.MX]) -> Callable[[Array], list[Array]]:
        """A function that evaluates the expressions at positions."""
        symbols, values = self._fixed
        function = ca.Function("at", [self.equations.q, *symbols], [ca.densify(e) for e in expressions])
        return lambda q: [np.asarray(value, dtype=float) for value in function.call([ca.DM(q), *values])]

    @cached_property
    def stated(self) -> tuple[Array, list[int]]:
        """Positions as given or guessed, and the indices of those that are not given."""
        start, place = self.start, 0
        values: list[ca.MX] = []
        loose: list[int] = []
        for c in self.equations.coordinates:
            size = c.q.numel()
            if c.name in start.positions:
                values.append(start.positions[c.name])
            else:
                values.append(start.guess.get(c.name, ca.MX.zeros(size)))
                loose += range(place, place + size)
            place += size
        (q,) = self.evaluate([ca.vertcat(*values)], np.zeros(place))
        return q.ravel(), loose

    @cached_property
    def q(self) -> Array:
        """Initial positions: those not given satisfy the constraints, in the least-squares sense if necessary."""
        q, loose = self.stated
        if self.start.project:
            loose = list(range(q.size))
        motion = self.equations.motions[self.start.mode]
        return self._solved(motion, q, loose) if loose and motion.m else q

    @cached_property
    def poses(self) -> dict[str, ca.MX]:
        """Poses of bodies at the initial positions, by name of the variable."""
        symbols = [body.lifted.pose for body in self.equations.mechanism.bodies.values() if body.lifted is not None]
        values = self.evaluate(self.equations.written_out(symbols), self.q)
        return {symbol.name(): ca.MX(ca.DM(value)) for symbol, value in zip(symbols, values, strict=True)}

    def _solved(self, motion: Motion, q: Array, loose: list[int]) -> Array:
        q, constraints = q.copy(), self._evaluator([motion.phi, motion.phi_q])
        for _ in range(50):
            phi, by_q = constraints(q)
            if not (np.all(np.isfinite(phi)) and np.all(np.isfinite(by_q))):
                break
            step = np.linalg.lstsq(by_q[:, loose], -phi.ravel(), rcond=RANK)[0]
            q[loose] += step
            if np.abs(step).max(initial=0.0) <= 1e-14 * (1 + np.abs(q).max()):
                break
        return q

    def check(self) -> None:
        """Refuse redundant or inconsistent constraints, missing masses, and a singular initial configuration.

        Raises
        ------
        FormulationError
            Names the constraints or coordinates.
        """
        start = self.start.mode
        for mode, motion in self.equations.motions.items():
            if not self._follows_inputs(motion.sparse.momentum[1]):
                self._check_mass(mode, motion)
            if not motion.m or self._follows_inputs(motion.phi):
                continue
            self._check_rank(mode, motion, self._moved(self.q), "everywhere")
            phi, by_q = self.evaluate([motion.phi, motion.phi_q], self.q)
            if mode == start and np.all(np.abs(phi.ravel()) <= MET * np.abs(by_q).max(axis=1)):
                # some redundant constraints are dependent only where they hold (a parallelogram with a third bar)
                self._check_rank(mode, motion, self._solved(motion, self._moved(self.q), list(range(motion.n))), "")
                self._check_rank(mode, motion, self.q, "start")
            if motion.m > motion.n:
                raise FormulationError(
                    f"{motion.n} coordinates cannot meet {motion.m} constraints ({', '.join(motion.labels)}).",
                    mode=mode,
                    variables=motion.labels,
                )

    def _follows_inputs(self, value: ca.MX) -> bool:
        """Whether an expression contains signals, which have values only during a run."""
        signals = {d.name for d in self.equations.mechanism.of_kind("memory") if d.signal is not None}
        return bool(signals & {s.name() for s in ca.symvar(value)})

    def _moved(self, q: Array) -> Array:
        """A generic configuration nearby."""
        angles = np.sqrt(2.0) * (1 + np.arange(q.size)) ** 2
        return np.asarray(q + NEARBY * (1 + np.abs(q).max()) * np.sin(angles))

    def _check_rank(self, mode: str, motion: Motion, q: Array, where: str) -> None:
        (by_q,) = self.evaluate([motion.phi_q], q)
        size = np.linalg.norm(by_q, axis=1, keepdims=True)
        if not np.all(np.isfinite(by_q)):
            return  # the run reports it, with its values
        scale = np.where(size > 0, size, 1.0)
        left, singular, _ = np.linalg.svd(by_q / scale)
        rank = int(np.count_nonzero(singular > RANK))
        if rank == motion.m:
            return
        null = left[:, rank:]
        involved = np.abs(null).max(axis=1) > 1e-6
        names = [name for name, share in zip(motion.labels, involved, strict=True) if share]
        if where == "start":
            raise FormulationError(
                f"The start is a singular configuration: there, constraints {', '.join(names)} depend on each other.",
                mode=mode,
                variables=names,
                remedy="Start elsewhere; directions of motion and multipliers are not determined there.",
            )
        (phi,) = self.evaluate([motion.phi], self.q)
        off = np.abs(null.T @ (phi / scale)).max() > MET and where == "everywhere"
        raise FormulationError(
            f"Constraints {', '.join(names)} are {'inconsistent' if off else 'redundant'}.",
            mode=mode,
            variables=names,
            remedy="They cannot hold together." if off else "One of them follows from the others: leave it out.",
        )

    def _mass(self, motion: Motion) -> Array:
        """The mass matrix at the initial positions, (n, n)."""
        speeds, momentum = motion.sparse.momentum
        symbols, values = self._fixed
        inputs = [speeds, self.equations.q, *symbols]
        function = ca.Function("momentum", inputs, self.equations.written_out([momentum]))
        return np.asarray(function(ca.DM.eye(motion.n), ca.DM(self.q), *values))

    def _check_mass(self, mode: str, motion: Motion) -> None:
        mass = self._mass(motion)
        if not np.all(np.isfinite(mass)):
            return
        if np.abs(mass - mass.T).max() > MET * np.abs(mass).max():
            raise FormulationError("The mass matrix is not symmetric.", mode=mode, variables=self.equations.labels)
        values, vectors = np.linalg.eigh(mass)
        if values[0] > 1e-14 * values[-1]:
            return
        names = [n for n, share in zip(self.equations.labels, np.abs(vectors[:, 0]), strict=True) if share > 1e-6]
        raise FormulationError(
            f"The mass matrix is not positive definite: motion of {', '.join(names)} has "
            f"{'no' if values[0] >= -1e-14 * abs(values[-1]) else 'negative'} inertia.",
            mode=mode,
            variables=names,
            remedy="Give every coordinate a mass: inertia(), point_mass(), or the mass of a bar or body.",
        )
