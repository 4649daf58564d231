"""Conditions for the existence of derivatives, and the checks that a gradient must pass before it is returned."""
