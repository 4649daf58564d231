"""Newton's matrix of large systems: band, sparse or Krylov, through SUNDIALS' interface of linear solvers.

SUNDIALS receives an opaque matrix and a custom solver; see linear.c. Their structs are accessed
by layout, which is verified with SUNDIALS' dense ones first.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from ctypes import CFUNCTYPE, Structure, c_int, c_void_p
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.sparse import csc_array
from scipy.sparse.linalg import spilu, splu

from dae_hybrid.cancellation import raise_if_cancelled
from dae_hybrid.codegen.sparse_lu import PIVOT, SparseFactors
from dae_hybrid.errors import AdapterError, OptionError
from dae_hybrid.numerics import factor_structure
from dae_hybrid.numerics.arrays import Array
from dae_hybrid.options import Preconditioner

from .backend import SolverModel
from .header import CONSTANTS, STRUCTS
from .library import INSTALL, Objects
from .signal_handlers import caught
from .structure import structure_of

if TYPE_CHECKING:
    from .memory import SolverMemory

MATRIX_OPERATIONS = (
    "getid", "clone", "destroy", "zero", "copy", "scaleadd", "scaleaddi", "matvecsetup", "matvec", "transposed",
    "space",
)  # fmt: skip
SOLVER_OPERATIONS = (
    "gettype", "getid", "setatimes", "setpreconditioner", "setscalingvectors", "setoptions", "setzeroguess",
    "initialize", "setup", "solve", "numiters", "resnorm", "lastflag", "space", "resid", "free",
)  # fmt: skip
RECOVERABLE, FATAL = CONSTANTS["RECOVERABLE"], CONSTANTS["FATAL"]
PRECONDITION_RIGHT = 2  # right preconditioning: the tested residual is the true one, for any preconditioner
#: dimension of the Krylov subspace; drop tolerance and fill factor of the incomplete factorisation
KRYLOV, DROPPED, FILL = 20, 1e-4, 10.0
Linear = STRUCTS["linear"]


class _Matrix(Structure):
    """Header of SUNDIALS' matrices."""

    _fields_ = [(name, c_void_p) for name in ("content", "operations", "context")]


class _LinearSolver(Structure):
    """Header of SUNDIALS' linear solvers."""

    _fields_ = [(name, c_void_p) for name in ("content", "python", "operations", "context")]


def _operations(kind: Any, handle: int, count: int) -> Any:
    return (c_void_p * count).from_address(kind.from_address(handle).operations)


@cache
def _check_layout() -> None:
    """Refuse a SUNDIALS library with a different layout of matrices and linear solvers."""
    objects = Objects()
    lib = objects.library
    matrix, solver = objects.dense_solver(objects.vector(1), 1)
    known = (
        (_Matrix, matrix, MATRIX_OPERATIONS, {"getid": "SUNMatGetID_Dense", "zero": "SUNMatZero_Dense"}),
        (_LinearSolver, solver, SOLVER_OPERATIONS, {
            "gettype": "SUNLinSolGetType_Dense", "getid": "SUNLinSolGetID_Dense", "setup": "SUNLinSolSetup_Dense",
            "solve": "SUNLinSolSolve_Dense", "free": "SUNLinSolFree_Dense",
        }),
    )  # fmt: skip
    for kind, handle, names, functions in known:
        if kind.from_address(handle).context != objects.context:
            raise AdapterError("This SUNDIALS lays out its linear solvers differently.", remedy=INSTALL)
        found = _operations(kind, handle, len(names))
        for name, function in functions.items():
            if found[names.index(name)] != ctypes.cast(getattr(lib, function), c_void_p).value:
                raise AdapterError(
                    f"The loaded SUNDIALS has another struct layout: '{name}' of its linear solvers.", remedy=INSTALL
                )
    objects.free()


class SuperLU:
    """SciPy's SuperLU for values in one array, solving in place in another, as C functions.

    With `incomplete` the factorisation is incomplete, or is replaced by `preconditioner`. A singular matrix is a
    recoverable failure; other exceptions are kept in `pending`.
    """

    preconditioner: Preconditioner | None = None

    def __init__(self, structure: factor_structure.Structure, values: Any, right: Any, *, incomplete: bool) -> None:
        self._matrix = csc_array((values, structure.rows, structure.pointers), shape=(structure.n, structure.n))
        self._matrix.has_canonical_format = True
        self._right, self._incomplete, self._order = right, incomplete, structure.order
        self._solver: Callable[[Array], Any] | None = None
        self.pending: BaseException | None = None
        prototype = CFUNCTYPE(c_int)
        self.factor, self.solve = prototype(self._guarded(self._factor)), prototype(self._guarded(self._solve))

    def keep(self, error: BaseException) -> bool:
        """Keep an exception to be raised later, if it is the first one."""
        if self.pending is not None:
            return False
        self.pending = error
        return True

    def _factor(self) -> int:
        self._solver = None
        if not np.isfinite(self._matrix.data).all():
            return RECOVERABLE
        if self.preconditioner is not None:
            self._solver = self._of_user(self.preconditioner)
            return 0
        try:
            if self._incomplete:
                factors = spilu(self._matrix, drop_tol=DROPPED, fill_factor=FILL, permc_spec="NATURAL")
            else:
                factors = splu(self._matrix, permc_spec="NATURAL", diag_pivot_thresh=PIVOT)
            self._solver = factors.solve
        except RuntimeError:  # exactly singular
            return RECOVERABLE
        return 0

    def _solve(self) -> int:
        if self._solver is None:
            return RECOVERABLE
        self._right[:] = self._solver(self._right)
        return 0

    def _of_user(self, preconditioner: Preconditioner) -> Callable[[Array], Array]:
        """Call the user's preconditioner with the matrix in variable order; return a solve in the matrix's order."""
        order, n = self._order, self._order.size
        place = np.empty_like(order)
        place[order] = np.arange(n)
        solver = preconditioner(csc_array(self._matrix[place][:, place]))
        if not callable(solver):
            raise OptionError(f"preconditioner must return a function that solves, got {type(solver).__name__}.")

        def solve(right: Array) -> Array:
            found = np.asarray(solver(right[place]), dtype=float)
            if found.shape != (n,):
                raise OptionError(f"The preconditioner gave shape {found.shape} for {n} equations.")
            if right.any() and not found.any():  # a zero correction would pass for convergence
                raise OptionError("The preconditioner gave zero for a right-hand side that is not: it is singular.")
            return found[order]

        return solve

    def _guarded(self, function: Callable[[], int]) -> Callable[[], int]:
        def call() -> int:
            if self.pending is not None:
                return FATAL
            try:
                raise_if_cancelled()
                return function()
            except BaseException as error:
                self.pending = error
                return FATAL

        return call


class LinearSystem:
    """Newton's matrix of one solver memory: the arrays used by linear.c, and the objects given to SUNDIALS."""

    def __init__(
        self, objects: Objects, model: SolverModel, structure: factor_structure.Structure, border: int, suffix: str
    ) -> None:
        _check_layout()
        e, self.structure, self._objects, self.library = model.equations, structure, objects, objects.library
        self._model = model
        backward = bool(suffix)
        n_entries = len(structure.place)
        rows = e.n if backward else max(int(e.functions["jacobian"].pattern(1)[1].size), 1)
        self.jacobian, self.rows = np.zeros(n_entries), np.zeros(rows)
        self.matrix, self.right = np.zeros(structure.size), np.zeros(e.n)
        self.pivots = np.zeros(e.n, dtype=np.int64)
        self.struct = Linear(
            n=e.n, border=border, backward=int(backward), n_entries=n_entries, n_matrix=structure.size,
            upper=structure.upper, lower=structure.lower, stored=structure.stored,
            **{name: getattr(structure, name).ctypes.data for name in ("place", "diagonal", "order", "equations")},
            **{name: getattr(self, name).ctypes.data for name in ("jacobian", "rows", "matrix", "right", "pivots")},
        )  # fmt: skip
        if structure.kind == "band":
            self._use_band()
        elif structure.kind != "dense":
            self.superlu = SuperLU(structure, self.matrix, self.right, incomplete=structure.kind == "krylov")
            self.struct.factor, self.struct.solve = (
                ctypes.cast(function, c_void_p).value for function in (self.superlu.factor, self.superlu.solve)
            )
            if structure.kind == "sparse" and structure.room:
                self._use_sparse()

    superlu: SuperLU | None = None

    def _use_band(self) -> None:
        lib, s = self._objects.library, self.structure
        length = s.stored + s.lower + 1
        self._columns = self.matrix.ctypes.data + 8 * length * np.arange(s.n, dtype=np.intp)
        self.struct.columns = self._columns.ctypes.data
        self.struct.factor_band = ctypes.cast(lib.SUNDlsMat_bandGBTRF, c_void_p).value
        self.struct.solve_band = ctypes.cast(lib.SUNDlsMat_bandGBTRS, c_void_p).value

    def _use_sparse(self) -> None:
        """Factorise in compiled code; SuperLU is the fallback without a compiler, or if the fill exceeds the room."""
        s = self.structure
        if s.pointers is None or s.rows is None:
            raise AssertionError("the structure is not sparse")
        self._lu = SparseFactors(s.pointers, s.rows, s.room)
        self.struct.lu = self._lu.address

    def counters(self) -> dict[str, int]:
        """Numbers of factorisations and solves so far, named after the kind of solver."""
        kind, s = self.structure.kind, self.struct
        return {f"{kind} factorisations": int(s.setups), f"{kind} solutions": int(s.solves)}

    def take_pending(self) -> BaseException | None:
        """Return and clear the exception of a factorisation in Python, if any."""
        if self.superlu is None:
            return None
        pending, self.superlu.pending = self.superlu.pending, None
        return pending

    def interruptible(self) -> AbstractContextManager[None]:
        """Run native work with signal handlers enabled during factorisations in Python."""
        return nullcontext() if self.superlu is None else caught(self.superlu.keep)

    def direct(self) -> tuple[int, int]:
        """Create the matrix and the solver for SUNDIALS."""
        objects, lib, callback = self._objects, self._objects.library, self._model.callback
        made = lib.SUNMatNewEmpty(objects.context)
        matrix = objects.own(made, lambda: lib.SUNMatFreeEmpty(made), "a matrix")
        operations = _operations(_Matrix, matrix, len(MATRIX_OPERATIONS))
        for name, what in {"getid": "matrix_id", "zero": "matrix_zero"}.items():
            operations[MATRIX_OPERATIONS.index(name)] = callback(what)
        made_solver = lib.SUNLinSolNewEmpty(objects.context)
        solver = objects.own(made_solver, lambda: lib.SUNLinSolFreeEmpty(made_solver), "a linear solver")
        _LinearSolver.from_address(solver).content = ctypes.addressof(self.struct)
        operations = _operations(_LinearSolver, solver, len(SOLVER_OPERATIONS))
        for name in ("gettype", "getid", "setup", "solve"):
            operations[SOLVER_OPERATIONS.index(name)] = callback(f"solver_{name.removeprefix('get')}")
        return matrix, solver

    def krylov(self, vector: int) -> int:
        """Create GMRES with right preconditioning."""
        objects, lib = self._objects, self._objects.library
        solver = lib.SUNLinSol_SPGMR(vector, PRECONDITION_RIGHT, KRYLOV, objects.context)
        return objects.own(solver, lambda: lib.SUNLinSolFree(solver), "a linear solver")


def prepare(memory: SolverMemory, wanted: str, suffix: str) -> Callable[[], None]:
    """Create the linear solver of a solver memory; return a function that attaches it.

    The suffix is that of the callbacks.
    """
    e, objects = memory.equations, memory.objects
    found = structure_of(e, backward=bool(suffix), wanted=wanted)
    memory.linear_solver, memory.superlu = found.kind, None
    callback, prefix = memory.model.callback, memory.prefix
    if found.kind == "dense":
        matrix, solver = objects.dense_solver(memory.x, memory.size)

        def connect_dense() -> None:
            memory.call("SetLinearSolver", solver, matrix)
            memory.call("SetJacFn", callback(f"{prefix}_jac{suffix}"))

        return connect_dense
    system = LinearSystem(objects, memory.model, found, memory.size - e.n, suffix)
    memory.model.use(system)
    memory.superlu = system.superlu
    if found.kind == "krylov":
        gmres = system.krylov(memory.x)

        def connect_krylov() -> None:
            memory.call("SetLinearSolver", gmres, None)
            memory.call("SetJacTimes", callback(f"{prefix}_product_setup"), callback(f"{prefix}_product"))
            memory.call("SetPreconditioner", callback(f"{prefix}_precondition"), callback(f"{prefix}_preconditioned"))

        return connect_krylov
    matrix, solver = system.direct()

    def connect() -> None:
        memory.call("SetLinearSolver", solver, matrix)
        memory.call("SetJacFn" if prefix == "ida" else "SetLinSysFn", callback(f"{prefix}_system"))

    return connect
