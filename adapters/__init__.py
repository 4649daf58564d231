"""Adapters of solver libraries; each implements `dae_hybrid.port.integrator.Integrator` or `SteppedIntegrator`."""
