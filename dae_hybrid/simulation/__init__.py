"""The run: the automaton, the rules of events, the times at which it stops."""
