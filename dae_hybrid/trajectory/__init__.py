"""Trajectories: segments, events, outputs and diagnostics of a run."""
