"""The SUNDIALS adapter: CVODES and ARKODE for explicit modes, IDAS for modes with algebraic variables.

SUNDIALS comes from the sundials4py wheel; its C functions are called through ctypes. The callbacks and
the step loop are compiled (`native/`, together with the model's generated code), so that no Python runs within a
segment. Without a compiler, `interpreted` runs the same loop in Python.
"""

from __future__ import annotations

from .session import SundialsIntegrator

__all__ = ["SundialsIntegrator"]
