"""Numerical methods on arrays: matrices, operators, Newton's method, zero crossings. Imports only the root."""
