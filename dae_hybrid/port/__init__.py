"""What the core and the adapters exchange: the interface of an integrator, native plans, records. Knows no model."""
