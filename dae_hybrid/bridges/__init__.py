"""Functionals and outputs as differentiable functions of other frameworks."""
