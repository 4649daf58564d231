"""Hybrid DAE systems: simulation with events and memory, and exact first derivatives of any functional."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError as _PackageNotFoundError
from importlib.metadata import version as _version
from pathlib import Path as _Path

import casadi as _casadi

from dae_hybrid import importers
from dae_hybrid.cancellation import Cancellation
from dae_hybrid.conditions.sequences import EventSequence
from dae_hybrid.ensembles.ensemble import ensemble
from dae_hybrid.ensembles.result import Ensemble
from dae_hybrid.errors import (
    AdapterError,
    AssumptionError,
    BoundError,
    ChatteringError,
    CheckpointError,
    CompilerWarning,
    ConditionWarning,
    ConsistencyError,
    DaeHybridError,
    DerivativeWarning,
    DualityError,
    EnsembleError,
    EventError,
    FormulationError,
    GrazingError,
    GuardPassedError,
    IntegrationError,
    LimitError,
    ModelError,
    ModelFileError,
    NonFiniteError,
    NotKeptError,
    OneSidedError,
    OptionError,
    OverloadError,
    ParameterError,
    ServiceError,
    StepLimitError,
    StepSizeError,
    StoreError,
    StoreMismatchError,
    UnsupportedError,
    WorkerLostError,
    ZenoError,
)
from dae_hybrid.fitting.experiment import Experiment
from dae_hybrid.fitting.fit import fit
from dae_hybrid.fitting.result import Fit
from dae_hybrid.interface.api import adjoint_gradient, forward_sensitivity, simulate
from dae_hybrid.interface.batch import Batch, batch
from dae_hybrid.interface.gradient_check import GradientCheck, check_gradient
from dae_hybrid.interface.prepared import Prepared, Run, prepare
from dae_hybrid.interface.registry import adapter_names, describe_adapters, register_adapter
from dae_hybrid.interface.starts import started
from dae_hybrid.method import Method
from dae_hybrid.optimization.changes import Change
from dae_hybrid.optimization.hessian import Hessian, hessian
from dae_hybrid.optimization.problem import OptimizationProblem
from dae_hybrid.optimization.result import OptimizationResult
from dae_hybrid.optimization.scan import Scan, scan
from dae_hybrid.options import Options
from dae_hybrid.port.integrator import Capabilities
from dae_hybrid.port.records import EventRecord
from dae_hybrid.sensitivity.duality import Duality
from dae_hybrid.sensitivity.results import EventSensitivity, ForwardSensitivity, Gradient
from dae_hybrid.statement.conditions import all_of, any_of, not_
from dae_hybrid.statement.discontinuities import smooth
from dae_hybrid.statement.model import HybridModel
from dae_hybrid.steppers.initial_value import InitialValueProblem, SteppedIntegrator, Stepper
from dae_hybrid.system.system import HybridSystem
from dae_hybrid.trajectory.diagnostics import Diagnostics
from dae_hybrid.trajectory.jump_sensitivity import JumpSensitivity
from dae_hybrid.trajectory.solvability import Solvability
from dae_hybrid.trajectory.trajectory import Segment, Trajectory
from dae_hybrid.uncertainty.errors import UncertaintyError, UncertaintyWarning
from dae_hybrid.uncertainty.form import Form, form
from dae_hybrid.uncertainty.inputs import Inputs
from dae_hybrid.uncertainty.linear import LinearPropagation, linear_propagation
from dae_hybrid.uncertainty.monte_carlo import monte_carlo
from dae_hybrid.uncertainty.sample import MonteCarlo
from dae_hybrid.uncertainty.sobol import SobolIndices, sobol_indices
from dae_hybrid.uncertainty.statistics import Estimate

__all__ = [
    "AdapterError",
    "AssumptionError",
    "Batch",
    "BoundError",
    "Cancellation",
    "Capabilities",
    "Change",
    "ChatteringError",
    "CheckpointError",
    "CompilerWarning",
    "ConditionWarning",
    "ConsistencyError",
    "DaeHybridError",
    "DerivativeWarning",
    "Diagnostics",
    "Duality",
    "DualityError",
    "Ensemble",
    "EnsembleError",
    "Estimate",
    "EventError",
    "EventRecord",
    "EventSensitivity",
    "EventSequence",
    "Experiment",
    "Fit",
    "Form",
    "FormulationError",
    "ForwardSensitivity",
    "Gradient",
    "GradientCheck",
    "GrazingError",
    "GuardPassedError",
    "Hessian",
    "HybridModel",
    "HybridSystem",
    "InitialValueProblem",
    "Inputs",
    "IntegrationError",
    "JumpSensitivity",
    "LimitError",
    "LinearPropagation",
    "Method",
    "ModelError",
    "ModelFileError",
    "MonteCarlo",
    "NonFiniteError",
    "NotKeptError",
    "OneSidedError",
    "OptimizationProblem",
    "OptimizationResult",
    "OptionError",
    "Options",
    "OverloadError",
    "ParameterError",
    "Prepared",
    "Run",
    "Scan",
    "Segment",
    "ServiceError",
    "SobolIndices",
    "Solvability",
    "StepLimitError",
    "StepSizeError",
    "SteppedIntegrator",
    "Stepper",
    "StoreError",
    "StoreMismatchError",
    "Trajectory",
    "UncertaintyError",
    "UncertaintyWarning",
    "UnsupportedError",
    "WorkerLostError",
    "ZenoError",
    "adapter_names",
    "adjoint_gradient",
    "all_of",
    "any_of",
    "batch",
    "check_gradient",
    "describe_adapters",
    "ensemble",
    "fit",
    "form",
    "forward_sensitivity",
    "hessian",
    "importers",
    "linear_propagation",
    "monte_carlo",
    "not_",
    "prepare",
    "register_adapter",
    "scan",
    "simulate",
    "smooth",
    "sobol_indices",
    "started",
]

try:
    __version__ = _version("dae-hybrid")
except _PackageNotFoundError:  # a checkout that is not installed
    __version__ = "0+unknown"

# In a checkout, adapters/ and problems/ are beside this folder; in an installed package they are inside.
if not (_Path(__file__).parent / "adapters").is_dir():
    from dae_hybrid._checkout import install as _install

    _install(_Path(__file__).resolve().parent.parent)

# CasADi's own NumPy behaviour, without its once-a-session notice about it.
if hasattr(_casadi.GlobalOptions, "setNumpyMode"):
    _casadi.GlobalOptions.setNumpyMode(-1)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
