"""Load the SUNDIALS shared library of the sundials4py wheel, declare its prototypes, and own its objects."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable
from ctypes import POINTER, byref, c_char_p, c_double, c_int, c_int64, c_long, c_void_p
from functools import cache
from importlib.metadata import version
from importlib.util import find_spec
from typing import Any

from dae_hybrid.errors import AdapterError

VERSION = 7
BDF, ADAMS = 2, 1
ONE_STEP = 2
SIMULTANEOUS, STAGGERED = 1, 2

# one letter per type: p pointer, d double, i int, l long, n sunindextype, s string, v void; the result comes first
_PROTOTYPES = {
    "SUNContext_Create": "i ip", "SUNContext_Free": "i p", "SUNContext_ClearErrHandlers": "i p",
    "SUNContext_GetLogger": "i pp", "SUNLogger_SetErrorFilename": "i ps", "SUNLogger_SetWarningFilename": "i ps",
    "N_VNew_Serial": "p np", "N_VMake_Serial": "p npp", "N_VDestroy": "v p", "N_VGetArrayPointer": "p p",
    "N_VGetLength": "n p", "N_VEnableFusedOps_Serial": "i pi", "N_VWrmsNorm_Serial": "d pp",
    "N_VWrmsNormMask_Serial": "d ppp",
    "SUNDenseMatrix": "p nnp", "SUNMatDestroy": "v p", "SUNDenseMatrix_Data": "p p", "SUNDenseMatrix_Rows": "n p",
    "SUNLinSol_Dense": "p ppp", "SUNLinSolFree": "i p", "SUNLinSol_SPGMR": "p piip",
    "SUNMatNewEmpty": "p p", "SUNMatFreeEmpty": "v p", "SUNLinSolNewEmpty": "p p", "SUNLinSolFreeEmpty": "v p",
    "SUNDlsMat_bandGBTRF": "n pnnnnp", "SUNDlsMat_bandGBTRS": "v pnnnpp",
    "SUNNonlinSol_FixedPoint": "p pip", "SUNNonlinSol_FixedPointSens": "p ipip", "SUNNonlinSolFree": "i p",
    "SUNNonlinSolNewEmpty": "p p", "SUNNonlinSolFreeEmpty": "v p", "N_VNewEmpty_SensWrapper": "p ip",
}  # fmt: skip
_SHARED: dict[str, Any] = {
    "ReInit": {"CVode": "i pdp", "IDA": "i pdpp"},
    "SVtolerances": "i pdp", "SetUserData": "i pp", "SetLinearSolver": "i ppp", "SetJacFn": "i pp",
    "SetJacTimes": "i ppp", "SetPreconditioner": "i ppp",
    "RootInit": "i pip", "SetRootDirection": "i pp", "SetNoInactiveRootWarn": "i p",
    "SetMaxStep": "i pd", "SetInitStep": "i pd", "SetMaxOrd": "i pi", "SetStopTime": "i pd",
    "SetMaxNumSteps": "i pl", "SetNonlinConvCoef": "i pd", "SetMaxConvFails": "i pi", "SetMaxErrTestFails": "i pi",
    "GetDky": "i pdip", "GetLastStep": "i pp", "GetCurrentStep": "i pp", "GetLastOrder": "i pp",
    "GetCurrentTime": "i pp", "GetRootInfo": "i pp", "GetNumErrTestFails": "i pp",
    "GetNumNonlinSolvConvFails": "i pp",
    "SensInit": {"CVode": "i piipp", "IDA": "i piippp"}, "SensReInit": {"CVode": "i pip", "IDA": "i pipp"},
    "SensSVtolerances": "i pdp", "SetSensErrCon": "i pi", "GetSensDky": "i pdip",
    "QuadInit": "i ppp", "QuadReInit": "i pp", "QuadSVtolerances": "i pdp", "SetQuadErrCon": "i pi", "GetQuad": "i ppp",
}  # fmt: skip
_OWN = {
    "CVodeCreate": "p ip", "CVodeInit": "i ppdp", "CVode": "i pdppi", "CVodeFree": "v p",
    "CVodeGetReturnFlagName": "s l", "CVodeSetNonlinearSolver": "i pp",
    "CVodeSetNonlinearSolverSensStg": "i pp", "CVodeSetNonlinearSolverSensSim": "i pp",
    "CVodeSetMaxHnilWarns": "i pi", "CVodeSetLinSysFn": "i pp", "CVodeSetJacEvalFrequency": "i pl",
    "ERKStepCreate": "p pdpp", "ERKStepSetTable": "i pp", "ARKodeButcherTable_LoadERKByName": "p s",
    "ARKodeButcherTable_Free": "v p",
    "ARKodeEvolve": "i pdppi", "ARKodeFree": "v p", "ARKodeReset": "i pdp", "ARKodeSVtolerances": "i pdp",
    "ARKodeSetUserData": "i pp", "ARKodeSetMaxStep": "i pd", "ARKodeSetInitStep": "i pd", "ARKodeSetStopTime": "i pd",
    "ARKodeSetMaxNumSteps": "i pl", "ARKodeSetMaxHnilWarns": "i pi", "ARKodeGetDky": "i pdip",
    "ARKodeGetLastStep": "i pp", "ARKodeGetCurrentStep": "i pp", "ARKodeGetCurrentTime": "i pp",
    "ARKodeGetNumErrTestFails": "i pp", "ARKodeGetReturnFlagName": "s l",
    "ARKodeSetAdaptController": "i pp", "ARKodeSetPostprocessStepFn": "i pp", "ARKodeSetInterpolantDegree": "i pi",
    "SUNAdaptController_PI": "p p", "SUNAdaptController_SetErrorBias": "i pd", "SUNAdaptController_Destroy": "i p",
    "IDACreate": "p p", "IDAInit": "i ppdpp", "IDASolve": "i pdpppi", "IDAFree": "v p",
    "IDAGetReturnFlagName": "s l", "IDASetId": "i pp", "IDASetSuppressAlg": "i pi",
    "IDAWFtolerances": "i pp", "IDASetNonlinearSolverSensStg": "i pp",
}  # fmt: skip
#: number of a vector's operations that are searched
OPERATIONS = 40
INSTALL = f"Install sundials4py >= {VERSION}.9, < {VERSION + 1}."
_TYPES: dict[str, Any] = {
    "p": c_void_p, "d": c_double, "i": c_int, "l": c_long, "n": c_int64, "s": c_char_p, "v": None,
}  # fmt: skip


@cache
def load() -> ctypes.CDLL:
    """Load SUNDIALS, check its version and declare the prototypes.

    Raises
    ------
    AdapterError
        sundials4py is missing, has another major version, or does not export the C functions.
    """
    try:
        spec = find_spec("sundials4py")
    except (ImportError, ValueError):
        spec = None
    if spec is None or spec.origin is None:
        raise AdapterError("sundials4py, which carries SUNDIALS, is not installed.", remedy=INSTALL)
    found = version("sundials4py")  # the wheel's version is that of its SUNDIALS, which the library does not export
    if found.partition(".")[0] != str(VERSION):
        raise AdapterError(f"sundials4py {found} is installed; this adapter needs {VERSION}.x.", remedy=INSTALL)
    try:
        library = ctypes.PyDLL(spec.origin)
        for name, prototype in _all_prototypes().items():
            result, _, arguments = prototype.partition(" ")
            function = getattr(library, name)
            function.restype = _TYPES[result]
            function.argtypes = [_TYPES[letter] for letter in arguments]
    except (OSError, AttributeError) as reason:
        raise AdapterError(
            f"The SUNDIALS library of sundials4py does not offer its C functions here: {reason}.",
            remedy=INSTALL,
        ) from reason
    return library


def _all_prototypes() -> dict[str, str]:
    shared = {
        f"{family}{name}": prototype[family] if isinstance(prototype, dict) else prototype
        for name, prototype in _SHARED.items()
        for family in ("CVode", "IDA")
    }
    return {**_PROTOTYPES, **shared, **_OWN}


class Resources:
    """Native objects owned by one Python object; freed in reverse order with it."""

    def __init__(self) -> None:
        self._releases: list[Callable[[], object]] = []
        self._finalizer = weakref.finalize(self, _release, self._releases)

    def own(self, handle: int | None, release: Callable[[], object], what: str) -> int:
        """Register a handle and its release function; raise a `MemoryError` for a null handle."""
        if not handle:
            raise MemoryError(f"SUNDIALS could not make {what}")
        self._releases.append(release)
        return handle

    def free(self) -> None:
        """Free all objects now; further calls do nothing."""
        self._finalizer()


def _release(releases: list[Callable[[], object]]) -> None:
    while releases:
        releases.pop()()


class Objects(Resources):
    """A SUNDIALS context, and vectors, matrices and solvers created in it."""

    def __init__(self) -> None:
        super().__init__()
        self.library = lib = load()
        context = c_void_p()
        if lib.SUNContext_Create(0, byref(context)) != 0:
            raise MemoryError("SUNDIALS could not make a context")
        self.context = self.own(context.value, lambda: lib.SUNContext_Free(byref(context)), "a context")
        # return codes carry all information: suppress SUNDIALS' own messages
        lib.SUNContext_ClearErrHandlers(self.context)
        logger = c_void_p()
        if lib.SUNContext_GetLogger(self.context, byref(logger)) == 0 and logger:
            lib.SUNLogger_SetErrorFilename(logger, b"")
            lib.SUNLogger_SetWarningFilename(logger, b"")

    def vector(self, n: int) -> int:
        """Create a serial vector with fused operations, which its clones inherit."""
        lib, handle = self.library, self.library.N_VNew_Serial(n, self.context)
        self.own(handle, lambda: lib.N_VDestroy(handle), "a vector")
        lib.N_VEnableFusedOps_Serial(handle, 1)
        return handle

    def vectors(self, count: int, n: int) -> Any:
        """Create a C array of vectors."""
        return (c_void_p * count)(*(self.vector(n) for _ in range(count)))

    def replace_operations(self, vector: int, replacements: dict[str, int]) -> None:
        """Replace operations of a vector, given by name; its clones inherit them."""
        operations = (c_void_p * OPERATIONS).from_address((c_void_p * 2).from_address(vector)[1] or 0)
        places = list(operations)
        for name, other in replacements.items():
            own = ctypes.cast(getattr(self.library, name), c_void_p).value
            if own not in places:
                raise AdapterError(f"The vectors of this SUNDIALS library do not use {name}.", remedy=INSTALL)
            operations[places.index(own)] = other

    def data(self, vector: int, n: int) -> Any:
        """A vector's data as a NumPy view, valid while this object lives."""
        import numpy as np

        if n == 0:
            return np.zeros(0)
        address = self.library.N_VGetArrayPointer(vector)
        return np.ctypeslib.as_array(ctypes.cast(address, POINTER(c_double)), (n,))

    def view(self, data: Any, n: int) -> int:
        """Create a vector on data owned by the caller."""
        lib, handle = self.library, self.library.N_VMake_Serial(n, data.ctypes.data, self.context)
        return self.own(handle, lambda: lib.N_VDestroy(handle), "a vector")

    def dense_solver(self, vector: int, n: int) -> tuple[int, int]:
        """Create a dense matrix and a linear solver for it."""
        lib = self.library
        matrix = lib.SUNDenseMatrix(n, n, self.context)
        self.own(matrix, lambda: lib.SUNMatDestroy(matrix), "a matrix")
        solver = lib.SUNLinSol_Dense(vector, matrix, self.context)
        return matrix, self.own(solver, lambda: lib.SUNLinSolFree(solver), "a linear solver")

    def step_controller(self, bias: float) -> int:
        """Create a proportional-integral step controller, with errors multiplied by `bias`."""
        lib, handle = self.library, self.library.SUNAdaptController_PI(self.context)
        self.own(handle, lambda: lib.SUNAdaptController_Destroy(handle), "a controller")
        lib.SUNAdaptController_SetErrorBias(handle, bias)
        return handle

    def fixed_point(self, vector: int, count: int = 0) -> int:
        """Create a fixed-point nonlinear solver; with `count`, for that many sensitivities."""
        lib = self.library
        solver = (
            lib.SUNNonlinSol_FixedPointSens(count, vector, 0, self.context)
            if count
            else lib.SUNNonlinSol_FixedPoint(vector, 0, self.context)
        )
        return self.own(solver, lambda: lib.SUNNonlinSolFree(solver), "a nonlinear solver")
