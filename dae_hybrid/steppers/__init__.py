"""Events, sensitivities and adjoints for any integrator that steps: the base of small adapters."""
