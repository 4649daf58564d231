"""Numerical methods on arrays: matrices, operators, Newton's method, zero crossings. Imports the root alone."""
