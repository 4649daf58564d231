"""The public functions and the registry of adapters."""
