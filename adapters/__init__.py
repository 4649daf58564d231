"""Adapters: each maps the port of `dae_hybrid.port.integrator` to one solver library."""
