"""The interface between core and adapters: integrators, native runs, records. Contains nothing of models."""
