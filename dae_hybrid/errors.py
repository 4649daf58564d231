"""Typed errors and warnings.

Every error says what was got, what is legal and what to do. Errors that stop a run carry where they
happened (``mode``, ``transition``, ``time``, ``variables``) and what had been computed by then
(``trajectory``), so that nothing is lost.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dae_hybrid.trajectory.trajectory import Trajectory


class DaeHybridError(Exception):
    """Base of every error the library raises.

    Attributes
    ----------
    message : str
        What went wrong, without the context.
    mode, transition : str or None
        Names, where the error belongs to one.
    time : float or None
        Time at which it happened.
    variables : tuple of str
        Variables involved.
    remedy : str or None
        What to do about it.
    trajectory : Trajectory or None
        What had been computed when a run stopped.
    """

    def __init__(
        self,
        message: str,
        *,
        mode: str | None = None,
        transition: str | None = None,
        time: float | None = None,
        variables: Sequence[str] = (),
        remedy: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.mode = mode
        self.transition = transition
        self.time = time
        self.variables = tuple(variables)
        self.remedy = remedy
        self.trajectory: Trajectory | None = None
        # from the adapter to the automaton: outputs of the segment that failed, by which method, and which guard is at
        # fault
        self.rows: Any = None
        self.method: Any = None
        self.guard: int | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        """Another process gets everything but the trajectory, which cannot be pickled."""
        return type(self), (self.message,), {**self.__dict__, "trajectory": None, "rows": None}

    def __str__(self) -> str:
        places = [
            f"mode '{self.mode}'" if self.mode is not None else "",
            f"transition '{self.transition}'" if self.transition is not None else "",
            f"t = {self.time!r}" if self.time is not None else "",
        ]
        place = ", ".join(p for p in places if p)
        text = f"{self.message} [{place}]" if place else self.message
        return f"{text}\n  {self.remedy}" if self.remedy else text


class ModelError(DaeHybridError, ValueError):
    """The model as declared cannot be built; names the declaration at fault."""


class FormulationError(ModelError):
    """The equations of a mode do not have a supported structure (square, index 0 or 1)."""


class ParameterError(DaeHybridError, ValueError):
    """A parameter is unknown, missing, of the wrong length or not finite."""


class OptionError(DaeHybridError, ValueError):
    """An option of a call is unknown or has an illegal value."""


class UnsupportedError(DaeHybridError, NotImplementedError):
    """The combination asked for is not available; says what is."""


class AdapterError(DaeHybridError, ImportError):
    """An integrator cannot be used on this machine; names the ones that can."""


class IntegrationError(DaeHybridError, RuntimeError):
    """The integrator could not go on; `trajectory` holds what it had."""


class NonFiniteError(IntegrationError):
    """An equation, guard, reset or functional gave NaN or infinity."""


class NotKeptError(DaeHybridError, RuntimeError):
    """A result was asked for what the run was told not to keep (``keep=``)."""


class CheckpointError(IntegrationError):
    """A part of a run that was carried out again from a checkpoint was not the same part of a run."""


class StepLimitError(IntegrationError):
    """`max_steps` was reached before the end of the run."""


class StepSizeError(IntegrationError):
    """The step size fell to its minimum: error test or Newton iteration keep failing."""


class ConsistencyError(DaeHybridError, RuntimeError):
    """Initial or post-transition values that satisfy the mode's equations could not be found."""


class BoundError(ConsistencyError):
    """An algebraic variable has passed a declared bound, and no transition leaves the mode there.

    Attributes
    ----------
    value : float or None
        Of the variable at `time`.
    bounds : tuple of float or None
        Between which it may be, lower and upper.
    """

    value: float | None = None
    bounds: tuple[float, float] | None = None


class EventError(DaeHybridError, RuntimeError):
    """A transition cannot be carried out as declared."""


class GrazingError(EventError):
    """A guard touches zero instead of crossing it: the event time is not differentiable there."""


class GuardPassedError(EventError):
    """A guard declared ``on_entry="error"`` is past its threshold when its mode is entered."""


class ChatteringError(EventError):
    """Too many transitions at one instant; names the cycle."""


class ZenoError(EventError):
    """Events accumulate at a finite time."""


class DualityError(DaeHybridError, ArithmeticError):
    """Forward and adjoint analysis differ by more than the tolerances explain: neither is to be trusted."""


class AssumptionError(DaeHybridError, ValueError):
    """An algorithm was asked for on a problem that does not meet its assumptions."""


class DerivativeWarning(UserWarning):
    """A derivative is one-sided, or a condition for it failed and ``strict=False`` asked for it all the same."""


class ConditionWarning(DerivativeWarning):
    """The accuracy asked does not determine a gradient: perturbations grow too much along the run, or too little."""


class CompilerWarning(UserWarning):
    """Native code could not be compiled or cached; the run goes on, slower, with the same answers."""
