"""The result of a run: segments, events, outputs, diagnostics."""
