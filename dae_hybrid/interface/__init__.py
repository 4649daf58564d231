"""The functions that users call, and the adapters that they name."""
