"""Plots, reproduced tables, validation against other programs."""
