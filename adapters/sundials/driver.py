"""Load the compiled driver (`native/steps.c` and its parts) and provide addresses of functions to it."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from ctypes import POINTER, c_int, c_void_p
from functools import cache
from typing import Any

from dae_hybrid.cancellation import raise_if_cancelled
from dae_hybrid.codegen.compiler import compile_source

from .header import CONSTANTS, STRUCTS, source
from .library import load

(
    PAUSED, ROWS_FULL, STALLED, LOST, NOT_STARTED, FINISHED, COMPLETE, SINGULAR, STUCK, REACHED_STOP, FOUND_ROOT,
    AT_ROUNDING,
) = (
    CONSTANTS[name] for name in (
        "PAUSED", "ROWS_FULL", "STALLED", "LOST", "NOT_STARTED", "FINISHED", "COMPLETE", "SINGULAR", "STUCK",
        "REACHED_STOP", "FOUND_ROOT", "AT_ROUNDING",
    )
)  # fmt: skip
GLANCES, HISTORY, TURN = (CONSTANTS[name] for name in ("GLANCES", "HISTORY", "TURN"))
Api, PythonApi, Sparse, Context, ExplicitStep, Run, BackwardRun = (
    STRUCTS[name] for name in ("sundials_api", "python_api", "sparse", "context", "explicit_step", "run", "backward")
)
FUNCTIONS = ("flow", "jacobian", "linearised", "guards", "rates", "complete")
#: functions that only some equations have
OPTIONAL = ("constants", "tape", "tangent", "pullback", "sketch", "settle", "weigh", "poles")
BLOCKS = ("f_x", "f_p", "f_m", "g_x", "g_p", "g_m")
COUNTERS = ("flow_calls", "jacobian_calls", "linearised_calls", "guard_calls", "not_finite")
#: counter for the accumulated errors of sensitivities without an error test
SENSITIVITY_ERROR = "sensitivity_error"


#: name of a statistic (SciPy's if it has one) -> counter
STATISTICS = {
    "steps": "steps", "nfev": "flow_calls", "njev": "jacobian_calls", "linearisations": "linearised_calls",
    "guard_evaluations": "guard_calls", "error_test_failures": "error_test_failures",
    "newton_failures": "newton_failures", "segments": "segments",
}  # fmt: skip


def statistics_of(counts: Mapping[str, int]) -> dict[str, int]:
    """Statistics of a session from its counters."""
    return {name: counts.get(counter, 0) for name, counter in STATISTICS.items()}


@cache
def driver() -> ctypes.CDLL | None:
    """Compile and load the driver; None without a working compiler."""
    library = compile_source(source())
    if library is None:
        return None
    for name in ("dh_begin", "dh_advance", "dh_stop"):
        function = getattr(library, name)
        function.argtypes, function.restype = [POINTER(Run)], c_int
    library.dh_run_events.restype = library.dh_back_steps.restype = library.dh_sweep.restype = (
        library.dh_run.restype
    ) = c_int
    for name in ("dh_begin_back", "dh_back"):
        function = getattr(library, name)
        function.argtypes, function.restype = [POINTER(BackwardRun)], c_int
    return library


@cache
def api(family: str) -> Any:
    """Addresses of the SUNDIALS functions called by steps.c."""
    lib = load()
    own = {
        "IDA": {"get_current_sens": "IDAGetCurrentYSens", "get_sens_dky": "IDAGetSensDky"},
        "CVode": {"get_current_sens": "CVodeGetCurrentStateSens", "get_sens_dky": "CVodeGetSensDky"},
        "ARKode": {
            "cvode": "ARKodeEvolve", "cvode_reinit": "ARKodeReset", "set_first_step": "ARKodeSetInitStep",
            "get_next_step": "ARKodeGetCurrentStep", "erk_reinit": "ERKStepReInit",
            "get_local_errors": "ARKodeGetEstLocalErrors",
        },
    }  # fmt: skip
    names = {
        "array": "N_VGetArrayPointer", "matrix": "SUNDenseMatrix_Data", "cvode": "CVode", "ida": "IDASolve",
        "cvode_sens_system": "CVodeGetNonlinearSystemDataSens", "ida_sens_system": "IDAGetNonlinearSystemDataSens",
        "cvode_system": "CVodeGetNonlinearSystemData", "ida_system": "IDAGetNonlinearSystemData",
        "cvode_reinit": "CVodeReInit", "ida_reinit": "IDAReInit", "cvode_sens_reinit": "CVodeSensReInit",
        "ida_sens_reinit": "IDASensReInit", "set_stop_time": f"{family}SetStopTime",
        "set_max_step": f"{family}SetMaxStep",
        "get_dky": f"{family}GetDky", "get_last_step": f"{family}GetLastStep",
        "get_current_time": f"{family}GetCurrentTime", "get_error_test_failures": f"{family}GetNumErrTestFails",
    }  # fmt: skip
    if family != "ARKode":
        names |= {
            "get_last_order": f"{family}GetLastOrder", "get_next_step": f"{family}GetCurrentStep",
            "get_root_info": f"{family}GetRootInfo", "get_newton_failures": f"{family}GetNumNonlinSolvConvFails",
            "quad_reinit": f"{family}QuadReInit", "get_quad": f"{family}GetQuad",
        }  # fmt: skip
    return Api(**{key: address(lib, name) for key, name in (names | own[family]).items()})


@cache
def python_api() -> Any:
    """Addresses of the Python functions called by model.c."""
    names = {
        "acquire": "PyGILState_Ensure", "release": "PyGILState_Release", "check_signals": "PyErr_CheckSignals",
        "take_raised": "PyErr_GetRaisedException", "call": "PyObject_CallNoArgs", "drop": "Py_DecRef",
    }  # fmt: skip
    functions = {key: address(ctypes.pythonapi, name) for key, name in names.items()}
    return PythonApi(**functions, raise_if_cancelled=id(raise_if_cancelled))  # a module's function is never freed


def loops() -> ctypes.CDLL:
    """The driver; it must have been loaded successfully before."""
    library = driver()
    if library is None:
        raise AssertionError("the compiled driver is not there")
    return library


@cache
def address(library: ctypes.CDLL, name: str) -> int:
    """Address of an exported function."""
    value = ctypes.cast(getattr(library, name), c_void_p).value
    if value is None:
        raise AssertionError(f"{name} has no address")
    return value
