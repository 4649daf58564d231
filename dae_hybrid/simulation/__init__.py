"""Simulation: the automaton, the event rules, stop times and checkpoints."""
