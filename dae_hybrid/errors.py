"""Typed errors and warnings.

Every error names the value that was given, the legal values and a remedy. Errors that stop a run carry their place
(``mode``, ``transition``, ``time``, ``variables``) and the partial result (``trajectory``).
"""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dae_hybrid.ensembles.result import Ensemble
    from dae_hybrid.trajectory.trajectory import Trajectory


class DaeHybridError(Exception):
    """Base of every error the library raises.

    Attributes
    ----------
    message : str
        The error, without its context.
    mode, transition : str or None
        Names of the mode and the transition concerned, if any.
    time : float or None
        Time of the error.
    variables : tuple of str
        Variables involved.
    remedy : str or None
        Suggested remedy.
    trajectory : Trajectory or None
        Partial result of a run that was stopped.
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
        # from the adapter to the automaton: outputs of the failed segment, its method, and the guard at fault
        self.rows: Any = None
        self.method: Any = None
        self.guard: int | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the error; omit results that cannot be pickled."""
        state = {**self.__dict__, "rows": None, "method": None}
        for name in ("trajectory", "result"):
            try:
                pickle.dumps(state.get(name))
            except Exception:  # whatever a model refers to: the error itself has to arrive
                state[name] = None
        return type(self), (self.message,), state

    def release(self) -> None:
        """Drop the partial result and the traceback, which would fill the memory where many errors are kept."""
        self.trajectory = self.rows = self.__traceback__ = None

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
    """The model cannot be built as declared; the message names the declaration at fault."""


class FormulationError(ModelError):
    """The equations of a mode do not have a supported structure (square, index 0 or 1)."""


class ModelFileError(ModelError):
    """A model file cannot be read; the message begins with its name, the line and the column.

    Attributes
    ----------
    file : str
        Name of the file, ``"<text>"`` for a text.
    line, column : int or None
        Place in the file, from 1; None if the error concerns the whole file.
    entry : str
        Path of the entry, such as ``modes.flight.ode.v``; empty for an error of syntax.
    """

    file: str = "<text>"
    line: int | None = None
    column: int | None = None
    entry: str = ""


class ParameterError(DaeHybridError, ValueError):
    """A parameter is unknown, missing, of the wrong length or not finite."""


class OptionError(DaeHybridError, ValueError):
    """An option of a call is unknown or has an illegal value."""


class UnsupportedError(DaeHybridError, NotImplementedError):
    """The requested combination is not available; the message lists those that are."""


class AdapterError(DaeHybridError, ImportError):
    """An integrator cannot be used on this machine; the message names those that can."""


class IntegrationError(DaeHybridError, RuntimeError):
    """The integrator could not continue; `trajectory` holds the partial result."""


class NonFiniteError(IntegrationError):
    """An equation, guard, reset or functional returned NaN or infinity."""


class NotKeptError(DaeHybridError, RuntimeError):
    """A result was requested that the run did not keep (``keep=``)."""


class CheckpointError(IntegrationError):
    """A part of a run recomputed from a checkpoint differs from the first pass."""


class StepLimitError(IntegrationError):
    """`max_steps` was reached before the end of the run."""


class StepSizeError(IntegrationError):
    """The step size fell to its minimum: the error test or the Newton iteration keeps failing."""


class ConsistencyError(DaeHybridError, RuntimeError):
    """No initial or post-transition values that satisfy the mode's equations could be found."""


class BoundError(ConsistencyError):
    """An algebraic variable has passed a declared bound, and no transition leaves the mode there.

    Attributes
    ----------
    value : float or None
        Value of the variable at `time`.
    bounds : tuple of float or None
        Lower and upper bound.
    """

    value: float | None = None
    bounds: tuple[float, float] | None = None


class EventError(DaeHybridError, RuntimeError):
    """A transition cannot be applied as declared, or a derivative does not exist.

    Attributes
    ----------
    is_one_sided : bool
        Whether derivatives are refused because they are one-sided: a change of the parameters one way leads elsewhere
        than the other. Values exist there, and derivatives beside the point.
    """

    is_one_sided: bool = False


class OneSidedError(EventError):
    """A fit or an optimisation ends at a point at which derivatives are one-sided.

    Attributes
    ----------
    result : Fit, OptimizationResult or None
        What the search has found, complete.
    """

    is_one_sided = True

    result: Any = None


class GrazingError(EventError):
    """A guard touches zero instead of crossing it: the event time is not differentiable there."""


class GuardPassedError(EventError):
    """A guard declared ``on_entry="error"`` is past its threshold when its mode is entered."""


class ChatteringError(EventError):
    """Too many transitions at one instant; the message names the cycle."""


class ZenoError(EventError):
    """Events accumulate at a finite time."""


class DualityError(DaeHybridError, ArithmeticError):
    """Forward and adjoint analysis differ by more than the tolerances explain: neither can be trusted."""


class AssumptionError(DaeHybridError, ValueError):
    """The problem does not meet the assumptions of the requested algorithm."""


class EnsembleError(DaeHybridError, RuntimeError):
    """An ensemble could not be completed, for a reason outside its runs; ``ensemble`` holds the results so far."""

    ensemble: Ensemble | None = None


class StoreError(EnsembleError):
    """A store of an ensemble belongs to another call, is damaged, or cannot be written."""


class StoreMismatchError(StoreError):
    """A store of an ensemble belongs to another call; the message says what differs."""


class WorkerLostError(EnsembleError):
    """A worker process has ended while it ran a set of parameters."""


class ServiceError(DaeHybridError, RuntimeError):
    """A service could not answer, for a reason outside the run that was requested."""


class OverloadError(ServiceError):
    """Too many requests wait; `retry_after` is a time in seconds after which to try again."""

    retry_after: int = 1


class LimitError(ServiceError):
    """A request exceeds a limit of the service; the message says which."""


class DerivativeWarning(UserWarning):
    """A derivative is one-sided, or returned with ``strict=False`` although a condition for it failed."""


class ConditionWarning(DerivativeWarning):
    """The tolerances do not determine a gradient: perturbations grow too much along the run, or too little."""


class CompilerWarning(UserWarning):
    """Native code could not be compiled or cached; the run continues, slower, with the same results."""
