"""Sensitivities of a step solved for all at once: `staggered.c`, given to SUNDIALS as a nonlinear solver."""

from __future__ import annotations

import ctypes
from ctypes import Structure, c_int, c_void_p
from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from dae_hybrid.errors import AdapterError

from . import structure as structures
from .driver import address, loops
from .header import CONSTANTS, STRUCTS
from .library import INSTALL, Objects
from .linear import LinearSystem

if TYPE_CHECKING:
    from .memory import SolverMemory

#: of the functions of a nonlinear solver the first ones, by what SUNDIALS calls them
OPERATIONS = ("GetType", "Initialize", "Setup", "Solve", "Free", "SetSysFn")
KINDS = ("dense", "band", "sparse")
#: factors are made at every step where they cost at most so many times as much as solutions for all directions
#: (measured: at one further iterations take as long), or for twice as many directions of implicit equations, where
#: no test of convergence sees the derivatives of algebraic variables
CHEAP = 1.0
LANES, TOGETHER = CONSTANTS["LANES"], CONSTANTS["TOGETHER"]


class _Solver(Structure):
    """Begin of SUNDIALS' nonlinear solvers."""

    _fields_ = [(name, c_void_p) for name in ("content", "python", "operations", "context")]


class _Several(Structure):
    """Vectors of SUNDIALS that are one."""

    _fields_ = [("vectors", c_void_p), ("count", c_int)]


@cache
def _check_layout() -> None:
    """Refuse a SUNDIALS whose nonlinear solvers, or vectors of vectors, are laid out in another way than here."""
    objects = Objects()
    lib = objects.library
    known = _Solver.from_address(objects.fixed_point(objects.vector(1)))
    found = (c_void_p * len(OPERATIONS)).from_address(known.operations or 0)
    for name in ("GetType", "Initialize", "Solve", "Free", "SetSysFn"):
        own = ctypes.cast(getattr(lib, f"SUNNonlinSol{name}_FixedPoint"), c_void_p).value
        if found[OPERATIONS.index(name)] != own:
            raise AdapterError(f"This SUNDIALS has its '{name}' elsewhere.", remedy=INSTALL)
    made = lib.N_VNewEmpty_SensWrapper(2, objects.context)
    several = objects.own(made, lambda: lib.N_VDestroy(made), "a vector of vectors")
    if _Several.from_address(c_void_p.from_address(several).value or 0).count != 2:
        raise AdapterError("This SUNDIALS lays out its vectors of vectors differently.", remedy=INSTALL)
    objects.free()


def _is_cheap(structure: structures.Structure, solutions: float) -> bool:
    """Whether factors at every step cost less than further iterations, each with so many solutions."""
    if structure.kind == "dense":
        return structure.n**3 / 3 <= CHEAP * solutions * structure.n**2
    return structure.kind == "band" and structure.lower <= CHEAP * solutions


class Staggered:
    """The solver for the sensitivities of one solver memory, and the arrays that staggered.c works on."""

    def __init__(self, memory: SolverMemory, count: int) -> None:
        _check_layout()
        e, model, objects = memory.equations, memory.model, memory.objects
        kind, size, n = memory.linear_solver, memory.size, e.n
        structure = (
            structures.by_columns(e) if kind == "dense" else structures.structure_of(e, backward=False, wanted=kind)
        )
        self.system = LinearSystem(objects, model, structure, size - n, "")
        own, context = self.system.struct, model.context
        own.model = model.user_data
        jacobian, linearised = (e.functions[name].pattern for name in ("jacobian", "linearised"))
        for one, other in ((jacobian(0), linearised(2)), (jacobian(1), linearised(5))):
            if not all(map(np.array_equal, one, other)):
                raise AssertionError("The Jacobian has one pattern by itself, and another one among the blocks.")
        if not context.tangent:  # the blocks are there at every step
            own.jacobian, own.rows = context.f_x.value, context.g_x.value
        exact = not context.tangent and _is_cheap(structure, count * (1 + memory.implicit))
        width = -(-count // LANES) * LANES
        self._work = {
            "sides": np.zeros(count * size),
            "rows": np.zeros(2 * n * width),
            "moved": np.zeros(TOGETHER * size),
        }
        self.struct = STRUCTS["staggered"](
            model=model.user_data, own=ctypes.addressof(own), implicit=int(memory.implicit),
            dense=int(kind == "dense"), exact=int(exact), width=width,
            **{name: array.ctypes.data for name, array in self._work.items()},
        )  # fmt: skip
        model.solve_together(self)
        lib = objects.library
        made = lib.SUNNonlinSolNewEmpty(objects.context)
        self.solver = objects.own(made, lambda: lib.SUNNonlinSolFreeEmpty(made), "a nonlinear solver")
        found = _Solver.from_address(self.solver)
        found.content = ctypes.addressof(self.struct)
        operations = (c_void_p * len(OPERATIONS)).from_address(found.operations or 0)
        functions = {"GetType": "all_type", "SetSysFn": "all_system", "Solve": f"{memory.prefix}_sensitivities"}
        for name, function in functions.items():
            operations[OPERATIONS.index(name)] = address(loops(), f"dh_{function}")
