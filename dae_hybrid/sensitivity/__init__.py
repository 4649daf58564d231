"""Sensitivity analysis: forward and adjoint sensitivities of a run, and their results."""
