"""Adapters: each maps the port of `dae_hybrid.integrator` to one solver library."""
