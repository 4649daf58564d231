"""Simultaneous solution for all sensitivities of a step: `staggered.c` as a nonlinear solver of SUNDIALS."""

from __future__ import annotations

import ctypes
from ctypes import Structure, c_int, c_void_p
from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from dae_hybrid.errors import AdapterError
from dae_hybrid.numerics import factor_structure

from .driver import address, loops
from .header import CONSTANTS, STRUCTS
from .library import INSTALL, Objects
from .linear import LinearSystem
from .structure import by_columns, structure_of

if TYPE_CHECKING:
    from .memory import SolverMemory

#: first operations of a SUNNonlinearSolver, in the order of its struct
OPERATIONS = ("GetType", "Initialize", "Setup", "Solve", "Free", "SetSysFn")
KINDS = ("dense", "band", "sparse")
#: refactorise at every step if this costs at most this multiple of the solves for all directions (measured: at one,
#: further iterations take as long); directions of implicit equations count twice, because no convergence test covers
#: the derivatives of algebraic variables
FACTORISATION_COST_RATIO = 1.0
LANES, TOGETHER = CONSTANTS["LANES"], CONSTANTS["TOGETHER"]


class _FixedPointSolver(Structure):
    """First members of a SUNNonlinearSolver."""

    _fields_ = [(name, c_void_p) for name in ("content", "python", "operations", "context")]


class _Several(Structure):
    """Content of SUNDIALS' wrapper of several vectors."""

    _fields_ = [("vectors", c_void_p), ("count", c_int)]


@cache
def _check_layout() -> None:
    """Check the struct layout of nonlinear solvers and vector wrappers in the loaded SUNDIALS."""
    objects = Objects()
    lib = objects.library
    known = _FixedPointSolver.from_address(objects.fixed_point(objects.vector(1)))
    found = (c_void_p * len(OPERATIONS)).from_address(known.operations or 0)
    for name in ("GetType", "Initialize", "Solve", "Free", "SetSysFn"):
        own = ctypes.cast(getattr(lib, f"SUNNonlinSol{name}_FixedPoint"), c_void_p).value
        if found[OPERATIONS.index(name)] != own:
            raise AdapterError(
                f"The loaded SUNDIALS has another struct layout: '{name}' of its nonlinear solvers.", remedy=INSTALL
            )
    made = lib.N_VNewEmpty_SensWrapper(2, objects.context)
    several = objects.own(made, lambda: lib.N_VDestroy(made), "a vector wrapper")
    if _Several.from_address(c_void_p.from_address(several).value or 0).count != 2:
        raise AdapterError("The loaded SUNDIALS has another struct layout: vector wrappers.", remedy=INSTALL)
    objects.free()


def _is_cheap(structure: factor_structure.Structure, solutions: float) -> bool:
    """Whether refactorisation at every step is cheaper than more iterations of `solutions` solves each."""
    if structure.kind == "dense":
        return structure.n**3 / 3 <= FACTORISATION_COST_RATIO * solutions * structure.n**2
    return structure.kind == "band" and structure.lower <= FACTORISATION_COST_RATIO * solutions


class Staggered:
    """The sensitivity solver of one solver memory, and the arrays used by staggered.c."""

    def __init__(self, memory: SolverMemory, count: int) -> None:
        _check_layout()
        e, model, objects = memory.equations, memory.model, memory.objects
        kind, size, n = memory.linear_solver, memory.size, e.n
        structure = by_columns(e) if kind == "dense" else structure_of(e, backward=False, wanted=kind)
        self.system = LinearSystem(objects, model, structure, size - n, "")
        own, context = self.system.struct, model.context
        own.model = model.user_data
        jacobian, linearised = (e.functions[name].pattern for name in ("jacobian", "linearised"))
        for one, other in ((jacobian(0), linearised(2)), (jacobian(1), linearised(5))):
            if not all(map(np.array_equal, one, other)):
                raise AssertionError("The pattern of the Jacobian differs from that of its block in `linearised`.")
        if not context.tangent:  # the blocks are available at every step
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
        found = _FixedPointSolver.from_address(self.solver)
        found.content = ctypes.addressof(self.struct)
        operations = (c_void_p * len(OPERATIONS)).from_address(found.operations or 0)
        functions = {"GetType": "all_type", "SetSysFn": "all_system", "Solve": f"{memory.prefix}_sensitivities"}
        for name, function in functions.items():
            operations[OPERATIONS.index(name)] = address(loops(), f"dh_{function}")
