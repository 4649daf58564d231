"""What must hold for a derivative to exist, and the checks of a gradient before it is returned."""
