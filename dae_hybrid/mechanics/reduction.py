"""Independent coordinates of a mode: their selection, and the velocities of all coordinates."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import casadi as ca
import numpy as np

from dae_hybrid.errors import ModelError
from dae_hybrid.mechanics.kinematics import Motion, partition_function, quality_function, spd_solve
from dae_hybrid.numerics.arrays import Array
from dae_hybrid.statement.model import HybridModel

#: quality of a selection, relative to that at the selection, below which other coordinates are selected
RESELECTION_QUALITY = 0.1
#: smallest quality of given coordinates
MIN_GIVEN_QUALITY = 1e-3


@dataclass(frozen=True, eq=False)
class Partition:
    """The f independent velocities w = B v of a mode, and quantities that follow from them.

    In a mode without a degree of freedom B and w are empty: the motion follows from the constraints.
    """

    mode: str
    motion: Motion
    w: ca.MX
    selection: ca.MX  # B, (f, n)
    memory: tuple[ca.MX, ca.MX] | None  # B by columns, and its quality when selected; None if B is given

    @classmethod
    def declare(
        cls, model: HybridModel, mode: str, motion: Motion, fixed: Array | None, start: tuple[Any, Any] | None
    ) -> Partition:
        """Declare the variables: B is `fixed`, or has the initial value `start` (B and its quality)."""
        f, n = motion.n - motion.m, motion.n
        if not f:
            return cls(mode, motion, ca.MX(0, 1), ca.MX(0, n), None)
        w = model.differential(f"w_{mode}", size=f, description=f"independent velocities of mode '{mode}'")
        if fixed is not None:
            return cls(mode, motion, w, ca.MX(ca.DM(fixed)), None)
        first, quality = start or (np.eye(f, n).ravel(order="F"), 1.0)
        held = model.memory(f"B_{mode}", size=f * n, initial=first)
        good = model.memory(f"det_{mode}", initial=quality)
        chosen = held > 0.5  # the same zeros and ones, with derivative zero
        return cls(mode, motion, w, ca.reshape(chosen, f, n), (held, good))

    def about(self, value: ca.MX) -> dict[ca.MX, ca.MX]:
        """w with its value, {} if it is empty."""
        return {self.w: value} if self.w.numel() else {}

    @property
    def along(self) -> ca.MX:
        """Directions that move dependent coordinates only, (n, m): the dependent rows of Phi_q^T."""
        dependent = 1 - ca.sum1(self.selection).T
        return ca.repmat(dependent, 1, self.motion.m) * self.motion.phi_q.T

    @property
    def velocities(self) -> ca.MX:
        """The solution v of ``Phi_q v + Phi_t = 0``, ``B v = w``."""
        motion, given = self.motion, self.selection.T @ self.w
        if not motion.m:
            return given
        short = motion.phi_q @ given + motion.phi_t
        return given - self.along @ spd_solve(motion.phi_q @ self.along, short)

    def chosen(self, jacobian: ca.MX) -> tuple[ca.MX, dict[Any, ca.MX]]:
        """B for another Phi_q, and the corresponding updates of memory."""
        if self.memory is None:
            return self.selection, {}
        flat, quality = partition_function(*jacobian.shape)(ca.densify(jacobian))
        return ca.reshape(flat, *self.selection.shape), dict(zip(self.memory, (flat, quality), strict=True))

    def choose_again(self, model: HybridModel) -> None:
        """Declare the event that selects other coordinates; with given ones, the condition that they remain valid."""
        if not (self.motion.bends and self.w.numel()):
            return
        if self.memory is None:
            reason = "The independent coordinates do not determine the others any more."
            model.require(
                self.mode, self._quality(self.selection) - MIN_GIVEN_QUALITY, reason, name=f"{self.mode}: coordinates"
            )
            return
        motion, (held, good) = self.motion, self.memory
        selection, updates = self.chosen(motion.phi_q)
        event = model.transition(
            self.mode,
            self.mode,
            guard=self._quality(held) - RESELECTION_QUALITY * good,
            direction="falling",
            reset={self.w: selection @ motion.v},
            memory=updates,
            on_entry="fire",  # the first selection may be poor for other parameters or start times
            name=f"{self.mode}: coordinates",
        )
        model.transitions[event.name] = replace(event, freezes=False)  # the motion is unaffected

    def _quality(self, selection: ca.MX) -> ca.MX:
        return quality_function(self.motion.m, self.motion.n)(ca.densify(self.motion.phi_q), ca.vec(selection))


def selection_of(motion: Motion, places: list[int], mode: str) -> Array | None:
    """B for independent coordinates given by index; None for a mode with another number of degrees of freedom."""
    if len(places) != motion.n - motion.m:
        return None
    if len(set(places)) < len(places):
        raise ModelError("Reduced: independent names a coordinate twice.", mode=mode)
    return np.eye(motion.n)[places]
