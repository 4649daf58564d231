"""Compile a statement to a system: structure, lowering, functions of modes, resets and transitions."""
