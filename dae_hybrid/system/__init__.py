"""Built systems: modes, transition maps, initial values, and their derivatives at a point."""
