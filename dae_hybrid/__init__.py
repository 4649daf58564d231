"""Hybrid DAE systems: simulation with events and memory, and exact first derivatives of any functional."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError as _PackageNotFoundError
from importlib.metadata import version as _version
from pathlib import Path as _Path

import casadi as _casadi

from dae_hybrid.errors import AdapterError as AdapterError
from dae_hybrid.errors import AssumptionError as AssumptionError
from dae_hybrid.errors import BoundError as BoundError
from dae_hybrid.errors import ChatteringError as ChatteringError
from dae_hybrid.errors import CheckpointError as CheckpointError
from dae_hybrid.errors import CompilerWarning as CompilerWarning
from dae_hybrid.errors import ConditionWarning as ConditionWarning
from dae_hybrid.errors import ConsistencyError as ConsistencyError
from dae_hybrid.errors import DaeHybridError as DaeHybridError
from dae_hybrid.errors import DerivativeWarning as DerivativeWarning
from dae_hybrid.errors import DualityError as DualityError
from dae_hybrid.errors import EventError as EventError
from dae_hybrid.errors import FormulationError as FormulationError
from dae_hybrid.errors import GrazingError as GrazingError
from dae_hybrid.errors import GuardPassedError as GuardPassedError
from dae_hybrid.errors import IntegrationError as IntegrationError
from dae_hybrid.errors import ModelError as ModelError
from dae_hybrid.errors import NonFiniteError as NonFiniteError
from dae_hybrid.errors import NotKeptError as NotKeptError
from dae_hybrid.errors import OptionError as OptionError
from dae_hybrid.errors import ParameterError as ParameterError
from dae_hybrid.errors import StepLimitError as StepLimitError
from dae_hybrid.errors import StepSizeError as StepSizeError
from dae_hybrid.errors import UnsupportedError as UnsupportedError
from dae_hybrid.errors import ZenoError as ZenoError
from dae_hybrid.interface.api import adjoint_gradient as adjoint_gradient
from dae_hybrid.interface.api import forward_sensitivity as forward_sensitivity
from dae_hybrid.interface.api import simulate as simulate
from dae_hybrid.interface.batch import Batch as Batch
from dae_hybrid.interface.batch import batch as batch
from dae_hybrid.interface.gradient_check import GradientCheck as GradientCheck
from dae_hybrid.interface.gradient_check import check_gradient as check_gradient
from dae_hybrid.interface.prepared import Prepared as Prepared
from dae_hybrid.interface.prepared import Run as Run
from dae_hybrid.interface.prepared import prepare as prepare
from dae_hybrid.interface.registry import adapter_names as adapter_names
from dae_hybrid.interface.registry import describe_adapters as describe_adapters
from dae_hybrid.interface.registry import register_adapter as register_adapter
from dae_hybrid.method import Method as Method
from dae_hybrid.options import Options as Options
from dae_hybrid.port.integrator import Capabilities as Capabilities
from dae_hybrid.port.records import EventRecord as EventRecord
from dae_hybrid.sensitivity.duality import Duality as Duality
from dae_hybrid.sensitivity.results import EventSensitivity as EventSensitivity
from dae_hybrid.sensitivity.results import ForwardSensitivity as ForwardSensitivity
from dae_hybrid.sensitivity.results import Gradient as Gradient
from dae_hybrid.statement.discontinuities import smooth as smooth
from dae_hybrid.statement.model import HybridModel as HybridModel
from dae_hybrid.steppers.initial_value import InitialValueProblem as InitialValueProblem
from dae_hybrid.steppers.initial_value import SteppedIntegrator as SteppedIntegrator
from dae_hybrid.steppers.initial_value import Stepper as Stepper
from dae_hybrid.system.system import HybridSystem as HybridSystem
from dae_hybrid.trajectory.diagnostics import Diagnostics as Diagnostics
from dae_hybrid.trajectory.jump_sensitivity import JumpSensitivity as JumpSensitivity
from dae_hybrid.trajectory.solvability import Solvability as Solvability
from dae_hybrid.trajectory.trajectory import Segment as Segment
from dae_hybrid.trajectory.trajectory import Trajectory as Trajectory

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
