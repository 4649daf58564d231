"""Events, sensitivities and adjoints for integrators that only take steps: the base of small adapters."""
