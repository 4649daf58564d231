"""Optimisation, scans along lines in parameter space, and Hessians."""
