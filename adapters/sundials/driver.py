"""The compiled driver: `driver.c` loaded, its structs mirrored, model functions bound to it."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from ctypes import POINTER, Structure, c_double, c_int, c_int64, c_long, c_size_t, c_void_p
from functools import cache
from importlib.resources import files

from dae_hybrid.codegen import compile_source

from .library import load

#: the C text, one unit in this order
PARTS = (
    "driver.h", "model.c", "callbacks.c", "linear.c", "runge_kutta.c", "guards.c", "driver.c", "march.c", "sweep.c",
    "plain.c",
)  # fmt: skip
#: rows of `run.glances` and `run.history` in driver.h
GLANCES, HISTORY, TURNED, TURN = 12, 3, 32, 4
PAUSED, ROWS_FULL, STALLED, LOST, NOT_PLAIN, SINGULAR, STUCK = 100, 101, 102, 103, 105, 106, 50
REACHED_STOP, FOUND_ROOT = 1, 2
FUNCTIONS = ("flow", "jacobian", "linearised", "guards", "rates", "complete")
BLOCKS = ("f_x", "f_p", "f_m", "g_x", "g_p", "g_m")
COUNTERS = ("flow_calls", "jacobian_calls", "linearised_calls", "guard_calls", "not_finite")


#: names of statistics, SciPy's where SciPy has one, and of counters
STATISTICS = {
    "steps": "steps", "nfev": "flow_calls", "njev": "jacobian_calls", "linearisations": "linearised_calls",
    "guard_evaluations": "guard_calls", "error_test_failures": "error_test_failures",
    "newton_failures": "newton_failures", "segments": "segments",
}  # fmt: skip


def statistics_of(counts: Mapping[str, int]) -> dict[str, int]:
    """What a session says of its counters."""
    return {name: counts.get(counter, 0) for name, counter in STATISTICS.items()}


class Api(Structure):
    """`sundials_api` of driver.h."""

    _fields_ = [(name, c_void_p) for name in (
        "array", "matrix", "cvode", "ida", "cvode_reinit", "ida_reinit", "cvode_sens_reinit", "ida_sens_reinit",
        "set_stop_time", "set_max_step", "set_first_step", "get_dky", "get_sens_dky", "get_current_sens",
        "get_last_step", "get_next_step", "get_last_order", "get_current_time", "get_root_info",
        "get_error_test_failures", "get_newton_failures", "erk_reinit", "quad_reinit",
        "get_quad",
    )]  # fmt: skip


class PythonApi(Structure):
    """`python_api` of driver.h."""

    _fields_ = [(name, c_void_p) for name in ("acquire", "release", "check_signals", "take_raised")]


class Sparse(Structure):
    """`sparse` of driver.h."""

    _fields_ = [(name, c_void_p) for name in ("column", "row", "owner", "value")]


class Context(Structure):
    """`context` of driver.h."""

    _fields_ = [
        ("api", c_void_p),
        *((name, c_void_p) for name in (*FUNCTIONS, "constants")),
        *((name, c_void_p) for name in ("arg", "res", "iw", "w")),
        *((name, c_int64) for name in ("n", "n_differential", "n_functionals", "n_integrals", "n_memory",
                                       "n_parameters", "n_guards", "n_directions", "n_wrt")),
        *((name, c_void_p) for name in ("parameters", "memory", "parameter_directions", "memory_directions")),
        ("moved", Sparse),
        *((name, c_void_p) for name in ("wrt", "weights", "integrands")),
        *((name, Sparse) for name in ("state_jacobian", "integrand_jacobian", *BLOCKS)),
        *((name, c_void_p) for name in ("zero_band", "departure", "latest")),
        ("latest_time", c_double),
        *((name, c_void_p) for name in ("point", "parameter_gradient", "path")),
        *((name, c_int64) for name in ("path_rows", "path_width", "path_row")),
        *((name, c_double) for name in ("origin", "earliest")),
        ("interpolated", c_void_p),
        ("interpolated_time", c_double),
        *((name, c_int64) for name in ("interpolated_valid", "component")),
        ("point_time", c_double),
        *((name, c_int64) for name in ("point_valid", *COUNTERS, "returned", "root_calls", "resting")),
        *((name, c_void_p) for name in ("python", "raised")),
        *((name, c_double) for name in ("clock", "asked")),
        ("unwatched", c_int64),
        ("held", c_void_p),
        ("held_valid", c_int64),
        ("linear", c_void_p),
        ("absolute", c_void_p),
        ("rtol", c_double),
        *((name, c_void_p) for name in ("spread", "spread_work")),
    ]  # fmt: skip


class ExplicitStep(Structure):
    """`explicit_step` of driver.h."""

    _fields_ = [
        ("n_stages", c_int64),
        *((name, c_void_p) for name in ("a", "b", "c", "d", "to_derivatives", "nodes")),
        ("size", c_int64),
        *((name, c_void_p) for name in ("begin", "end", "stages", "trial")),
        *((name, c_double) for name in ("begins", "ends")),
    ]  # fmt: skip


class Run(Structure):
    """`run` of driver.h."""

    _fields_ = [
        *((name, c_void_p) for name in ("model", "memory", "x", "xdot", "work", "sensitivities", "sensitivity_rates",
                                        "completed", "guard_values", "roots", "glances", "history", "band", "noise",
                                        "pace", "directions", "t_eval", "rows")),
        *((name, c_double) for name in ("t", "t_stop", "until")),
        *((name, c_int64) for name in ("n_eval", "next_eval", "n_rows", "capacity", "width", "record", "dense_order",
                                       "implicit", "closed_end", "budget", "steps", "root", "corrector")),
        *((name, c_long) for name in ("error_test_failures", "newton_failures")),
        ("times", c_double * GLANCES),
        ("past", c_double * HISTORY),
        ("n_past", c_int64),
        *((name, c_double) for name in ("resolution", "loose")),
        ("step", c_void_p),
        ("jumps", c_int64),
        ("failures_before", c_long),
        ("path", c_void_p),
        *((name, c_int64) for name in ("n_path", "path_capacity", "path_width")),
        *((name, c_double) for name in ("first_step", "next_step", "approach")),
        ("bracket", c_double * 2),
        ("beyond", c_double),
        ("n_singularities", c_int64),
        ("turns", c_double * (TURNED * TURN)),
        ("n_turns", c_int64),
    ]  # fmt: skip


class BackwardRun(Structure):
    """`backward` of driver.h."""

    _fields_ = [
        *((name, c_void_p) for name in ("model", "memory", "x", "xdot", "sample", "integrals", "longest", "t_eval",
                                        "samples")),
        *((name, c_double) for name in ("t", "t_stop", "max_step", "bound", "begun", "clock", "target", "toward")),
        *((name, c_int64) for name in ("n_eval", "next_eval", "budget", "steps", "implicit", "anchor")),
    ]  # fmt: skip


@cache
def driver() -> ctypes.CDLL | None:
    """The compiled driver, None without a working compiler."""
    folder = files("dae_hybrid.adapters.sundials")
    library = compile_source("\n".join(folder.joinpath(part).read_text() for part in PARTS))
    if library is None:
        return None
    library.dh_sizes.restype = c_size_t
    mirrored = (Api, Context, Run, BackwardRun, PythonApi, ExplicitStep)
    if [library.dh_sizes(i) for i in range(len(mirrored))] != [ctypes.sizeof(kind) for kind in mirrored]:
        raise AssertionError("driver.h and driver.py disagree on the layout of their structs")
    for name in ("dh_begin", "dh_advance", "dh_stop"):
        function = getattr(library, name)
        function.argtypes, function.restype = [POINTER(Run)], c_int
    library.dh_march.restype = library.dh_back_steps.restype = library.dh_sweep.restype = library.dh_run.restype = c_int
    for name in ("dh_begin_back", "dh_back"):
        function = getattr(library, name)
        function.argtypes, function.restype = [POINTER(BackwardRun)], c_int
    return library


@cache
def api(family: str) -> Api:
    """Addresses of what driver.c calls in SUNDIALS."""
    lib = load()
    own = {
        "IDA": {"get_current_sens": "IDAGetCurrentYSens", "get_sens_dky": "IDAGetSensDky"},
        "CVode": {"get_current_sens": "CVodeGetCurrentStateSens", "get_sens_dky": "CVodeGetSensDky"},
        "ARKode": {
            "cvode": "ARKodeEvolve", "cvode_reinit": "ARKodeReset", "set_first_step": "ARKodeSetInitStep",
            "get_next_step": "ARKodeGetCurrentStep", "erk_reinit": "ERKStepReInit",
        },
    }  # fmt: skip
    names = {
        "array": "N_VGetArrayPointer", "matrix": "SUNDenseMatrix_Data", "cvode": "CVode", "ida": "IDASolve",
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
def python_api() -> PythonApi:
    """Addresses of what driver.c calls in Python."""
    names = {
        "acquire": "PyGILState_Ensure", "release": "PyGILState_Release", "check_signals": "PyErr_CheckSignals",
        "take_raised": "PyErr_GetRaisedException",
    }  # fmt: skip
    return PythonApi(**{key: address(ctypes.pythonapi, name) for key, name in names.items()})


def loops() -> ctypes.CDLL:
    """The driver, where its presence has been asked for before."""
    library = driver()
    if library is None:
        raise AssertionError("the compiled driver is not there")
    return library


def address(library: ctypes.CDLL, name: str) -> int:
    """Address of an exported function."""
    value = ctypes.cast(getattr(library, name), c_void_p).value
    if value is None:
        raise AssertionError(f"{name} has no address")
    return value
