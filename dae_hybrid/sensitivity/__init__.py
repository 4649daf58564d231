"""Forward and adjoint analysis of a run, and their results."""
