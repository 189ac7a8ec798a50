"""`muster sim`: run the simulator."""
