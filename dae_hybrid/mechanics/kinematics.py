"""Constraints, their rates, the equations of motion, and symbolic solutions of both."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import casadi as ca

#: an equation with its name in errors
Labelled = tuple[str, ca.MX]
#: functions of positions and their multipliers, whose force is ``-phi_q^T multipliers``
Push = tuple[ca.MX, ca.MX]
#: declares an unknown of a given name and size
Declare = Callable[[str, int], ca.MX]

#: largest number of coordinates for which accelerations are symbolic expressions
SMALL = 12


@dataclass(frozen=True, eq=False)
class Motion:
    """The equations of motion of one mode, ``M a + Phi_q^T lambda = F`` with ``Phi(t, q) = 0``.

    Corner, Sandu and Sandu (2020), eq. 1 and 27. Columns contain all n coordinates, or all m active
    constraints.
    """

    t: ca.MX
    q: ca.MX
    v: ca.MX
    a: ca.MX
    mass: ca.MX
    force: ca.MX
    phi: ca.MX
    multipliers: ca.MX
    labels: tuple[str, ...]  # names of the rows of phi
    large: Motion | None = None  # the same equations in sparse form, if a large tree of bodies has no mass matrix

    @property
    def sparse(self) -> Motion:
        """The form of the equations that a mode states."""
        return self.large or self

    @property
    def n(self) -> int:
        """Number of coordinates."""
        return int(self.q.numel())

    @property
    def m(self) -> int:
        """Number of constraints."""
        return int(self.phi.numel())

    @cached_property
    def phi_q(self) -> ca.MX:
        """The Jacobian of the constraints, (m, n)."""
        return ca.jacobian(self.phi, self.q)

    # positions in which the constraints are stated, and their rates

    @property
    def places(self) -> ca.MX:
        """The positions, a column."""
        return self.q

    @property
    def speeds(self) -> ca.MX:
        """Their rates."""
        return self.v

    @property
    def accelerations(self) -> ca.MX:
        """Their second derivatives."""
        return self.a

    @property
    def by_places(self) -> ca.MX:
        """The Jacobian of the constraints by `places`."""
        return self.phi_q

    @cached_property
    def phi_t(self) -> ca.MX:
        """The partial derivative of the constraints with respect to time, (m, 1)."""
        return ca.jacobian(self.phi, self.t)

    @cached_property
    def velocity(self) -> ca.MX:
        """Phi_q v + Phi_t, (m, 1) (eq. 27b)."""
        return self.by_places @ self.speeds + self.phi_t

    @cached_property
    def gamma(self) -> ca.MX:
        """Phi'' - Phi_q a, (m, 1) (eq. 27c, where it is -C)."""
        rate = self.velocity
        return ca.jacobian(rate, self.places) @ self.speeds + ca.jacobian(rate, self.t)

    @property
    def bends(self) -> bool:
        """Whether the directions of free motion change along a run."""
        return bool(ca.depends_on(self.phi_q, ca.vertcat(self.t, self.q))) if self.m else False

    @cached_property
    def spread(self) -> ca.MX:
        """det(J J^T) of Phi_q with rows of length one, a measure of the independence of the constraints."""
        return _spread_function(_Pattern(self.phi_q.sparsity()))(self.phi_q)

    @cached_property
    def free_directions(self) -> ca.MX:
        """The projection onto the directions of free motion, (n, n)."""
        return free_directions_function(self.m, self.n)(ca.densify(self.phi_q)) if self.m else ca.MX.eye(self.n)

    def named(self, rates: bool = False) -> list[Labelled]:
        """The constraints, or their rates, with their names."""
        column, what = (self.velocity, "velocity constraint") if rates else (self.phi, "constraint")
        return [(f"{what} '{label}'", row) for label, row in zip(self.labels, rows_of(column), strict=True)]

    @property
    def definitions(self) -> list[Labelled]:
        """Equations of further variables."""
        return []

    @property
    def inner(self) -> tuple[tuple[str, ...], ...]:
        """Names of the variables that have `definitions`: poses, twists, rates of twists, wrenches."""
        return ((), (), (), ())

    @property
    def along_constraints(self) -> ca.MX:
        """Phi_q a, (m, 1)."""
        return self.by_places @ self.accelerations

    @cached_property
    def momentum(self) -> tuple[ca.MX, ca.MX]:
        """Symbols for velocities, and M times these, (n, 1) each."""
        jump = ca.MX.sym("jump", self.n)
        return jump, self.impulse_balance(jump, [])[0]

    def impulse_balance(
        self,
        jump: ca.MX,
        pushes: list[Push],
        declare: Declare | None = None,  # noqa: ARG002 - for large trees
    ) -> tuple[ca.MX, list[Labelled]]:
        """``M jump + sum of phi_q^T impulses``, (n, 1), with equations of the unknowns that `declare` declares."""
        along = [ca.jacobian(phi, self.q).T @ impulses for phi, impulses in pushes]
        return sum(along, self.mass @ jump), []

    @property
    def balance(self) -> ca.MX:
        """Equations for the accelerations for given multipliers, (n, 1) (eq. 1)."""
        return self.a - self.rates if self.is_small else self.forces

    @property
    def forces(self) -> ca.MX:
        """M a + Phi_q^T lambda - F, (n, 1)."""
        return self.mass @ self.a - self.pull

    @property
    def rates(self) -> ca.MX:
        """The rates v' for given multipliers, (n, 1)."""
        return spd_solve(self.mass, self.pull) if self.is_small else self.a

    @property
    def pull(self) -> ca.MX:
        """The total force F - Phi_q^T lambda, (n, 1)."""
        return self.force - self.phi_q.T @ self.multipliers

    @property
    def is_small(self) -> bool:
        """Whether accelerations are symbolic expressions, whose size grows with the cube of the coordinates."""
        return self.n <= SMALL

    def saddle_point(self, wanted: ca.MX, compliance: Any = 0.0) -> ca.MX:
        """``M a + Phi_q^T lambda - F`` and ``Phi_q a - wanted - compliance lambda``."""
        return ca.vertcat(self.forces, self.along_constraints - wanted - compliance * self.multipliers)

    def index1(self, wanted: ca.MX, compliance: Any = 0.0) -> ca.MX:
        """Equations for accelerations and multipliers with ``Phi_q a = wanted + compliance lambda`` (eq. 32)."""
        if not self.is_small:
            return self.saddle_point(wanted, compliance)
        by_force = spd_solve(self.mass, ca.horzcat(self.force, self.phi_q.T))
        free, yielding = by_force[:, 0], by_force[:, 1:]
        matrix = self.phi_q @ yielding + compliance * ca.MX.eye(self.m)
        multipliers = spd_solve(matrix, self.phi_q @ free - wanted)
        return ca.vertcat(self.a - free + yielding @ multipliers, self.multipliers - multipliers)


def spd_solve(matrix: ca.MX, right: ca.MX) -> ca.MX:
    """matrix^-1 right for a symmetric positive definite matrix, by a sparse L D L^T factorisation."""
    if not matrix.shape[0]:
        return right
    pattern = (matrix.sparsity() + matrix.T.sparsity()).unite(ca.Sparsity.diag(matrix.shape[0]))
    solution = _spd_solver(_Pattern(pattern), right.shape[1])(ca.project(matrix, pattern), right)
    return ca.MX(solution)


class _Pattern:
    """A hashable sparsity pattern."""

    def __init__(self, pattern: ca.Sparsity) -> None:
        self.pattern = pattern
        self._key = (pattern.shape, tuple(pattern.colind()), tuple(pattern.row()))

    def __hash__(self) -> int:
        return hash(self._key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Pattern) and self._key == other._key


@cache
def _spd_solver(key: _Pattern, columns: int) -> ca.Function:
    pattern = key.pattern
    matrix, right = ca.SX.sym("A", pattern), ca.SX.sym("b", pattern.shape[0], columns)
    diagonal, upper, order = ca.ldl(matrix)
    solution = ca.ldl_solve(right, diagonal, upper, order)
    return ca.Function("spd_solve", [matrix, right], [ca.densify(solution)])


@cache
def partition_function(m: int, n: int) -> ca.Function:
    """From Phi_q (m, n): the selection B (n - m, n) of independent coordinates, flat by columns, and its quality.

    The quality of a selection is ``det(B T B^T)`` with the projection T onto the directions of free motion. It equals
    ``det(Phi_q,dep)^2 / det(Phi_q Phi_q^T)``, lies between 0 and 1 in any units of the constraints, and sums to 1 over
    all selections. The selection consists of the pivots of the Cholesky factorisation of T with the largest pivot in
    every step (Wehage and Haug 1982 do this with Phi_q). Selections are piecewise constant, with derivative zero.
    """
    jacobian = ca.SX.sym("J", m, n)
    left, independent, quality = _free_directions(jacobian), ca.SX.zeros(1, n), ca.SX(1)
    for _ in range(n - m):
        diagonal = ca.diag(left).T * (1 - independent)
        largest, found, chosen = ca.mmax(diagonal), ca.SX(0), ca.SX.zeros(1, n)
        for j in range(n):
            free = ca.logic_not(ca.logic_or(found, independent[j]))
            chosen[j] = ca.logic_and(diagonal[j] == largest, free)
            found = ca.logic_or(found, chosen[j])
        column = left @ chosen.T
        left = left - column @ column.T / (largest + (largest == 0))
        independent, quality = independent + chosen, quality * largest
    selection, before = ca.SX.zeros(n - m, n), ca.SX(0)
    for j in range(n):
        for r in range(n - m):
            selection[r, j] = independent[j] * (before == r)
        before = before + independent[j]
    return ca.Function("partition", [jacobian], [ca.vec(selection), quality])


@cache
def quality_function(m: int, n: int) -> ca.Function:
    """The quality of `partition_function` for a given selection, flat by columns."""
    jacobian, selection = ca.SX.sym("J", m, n), ca.SX.sym("B", (n - m) * n)
    chosen = ca.reshape(selection, n - m, n)
    quality = _determinant(chosen @ _free_directions(jacobian) @ chosen.T)
    return ca.Function("quality", [jacobian, selection], [quality])


@cache
def free_directions_function(m: int, n: int) -> ca.Function:
    """The projection of `_free_directions` for a Jacobian (m, n)."""
    jacobian = ca.SX.sym("J", m, n)
    return ca.Function("free_directions", [jacobian], [_free_directions(jacobian)])


def _free_directions(jacobian: ca.SX) -> ca.SX:
    """I - J^T (J J^T)^-1 J."""
    factors = ca.ldl(ca.densify(jacobian @ jacobian.T), False)
    return ca.SX.eye(jacobian.shape[1]) - jacobian.T @ ca.ldl_solve(jacobian, *factors)


@cache
def _spread_function(key: _Pattern) -> ca.Function:
    """det(J J^T) of a Jacobian with normalised rows; 1 if they are orthogonal."""
    jacobian = ca.SX.sym("J", key.pattern)
    size = ca.sqrt(ca.sum2(jacobian**2))
    rows = ca.diag(1 / (size + (size == 0))) @ jacobian
    return ca.Function("spread", [jacobian], [_determinant(rows @ rows.T)])


def _determinant(symmetric: ca.SX) -> ca.SX:
    """The product of the pivots of a symmetric matrix without negative eigenvalues."""
    product = ca.SX(1)
    for pivot in ca.vertsplit(ca.ldl(symmetric)[0]):
        product = product * pivot
    return product


def rows_of(expression: Any) -> list[ca.MX]:
    """The entries of a column."""
    return list(ca.vertsplit(expression)) if expression.numel() else []
