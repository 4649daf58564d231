"""Convert return codes of SUNDIALS to typed errors."""

from __future__ import annotations

from typing import Any

from dae_hybrid.errors import (
    ConsistencyError,
    DaeHybridError,
    IntegrationError,
    NonFiniteError,
    StepLimitError,
    StepSizeError,
)
from dae_hybrid.port.failure_messages import SHORT_STEPS, SUSPECTS, not_finite_equations

_NEAR = "Check the equations near this point."
_BLOW_UP = "or a solution that blows up."
_ERROR_TEST = (
    StepSizeError,
    "The step size became too small: the error test keeps failing.",
    SHORT_STEPS,
)
_NEWTON = (
    StepSizeError,
    "The step size became too small: Newton's iteration keeps failing.",
    f"Look for a singular Jacobian, a kink in the equations, {_BLOW_UP}",
)
_SENTENCES: dict[str, tuple[type[DaeHybridError], str, str]] = {
    "TOO_MUCH_WORK": (StepLimitError, "The step limit was reached.", "Raise max_steps, or loosen rtol."),
    "TOO_MUCH_ACC": (StepSizeError, "The tolerances ask for more than double precision has.", "Loosen rtol or atol."),
    "ERR_FAILURE": _ERROR_TEST,
    "ERR_FAIL": _ERROR_TEST,
    "CONV_FAILURE": _NEWTON,
    "CONV_FAIL": _NEWTON,
    "LSETUP_FAIL": (IntegrationError, "The Jacobian could not be evaluated or factorised.", _NEAR),
    "LSOLVE_FAIL": (IntegrationError, "The linear system of a step could not be solved.", _NEAR),
    "ILL_INPUT": (
        IntegrationError,
        "The integrator refuses to start: the interval, its first step or a tolerance is out of the range of double "
        "precision.",
        "Choose units of time and of the states in which they are neither tiny nor huge; give an atol for states that "
        "are zero.",
    ),
    "TOO_CLOSE": (StepSizeError, "The interval is too short to integrate.", "Two events lie closer than rounding."),
}


_REPEATED = ("REPTD", "REP_", "FUNC", "RHS", "RES", "FIRST", "UNREC")


def integration_error(flag: int, name: str, *, not_finite: bool, mode: str, time: float) -> IntegrationError | Any:
    """Return the error for a negative return code."""
    key = name.removeprefix("CV_").removeprefix("IDA_").removeprefix("ARK_")
    if not_finite and key.startswith("RTFUNC"):
        return NonFiniteError(
            "A guard of the mode gives NaN or infinity.",
            mode=mode,
            time=time,
            remedy=f"Check the mode's guards just after this point for {SUSPECTS}.",
        )
    if not_finite and not key.startswith("ERR_FAIL"):
        return not_finite_equations(mode=mode, time=time)
    if key in _SENTENCES:
        kind, sentence, remedy = _SENTENCES[key]
        return kind(f"{sentence} ({name})", mode=mode, time=time, remedy=remedy)
    if any(part in key for part in _REPEATED):
        return IntegrationError(
            f"A function of the mode failed ({name}).",
            mode=mode,
            time=time,
            remedy=_NEAR,
        )
    if "CONSTR" in key or "NO_RECOVERY" in key:
        return ConsistencyError(f"Consistent values could not be found ({name}).", mode=mode, time=time)
    return IntegrationError(f"SUNDIALS returned {name} ({flag}).", mode=mode, time=time)
