"""Run trials in processes, and holds the driver's handle on them; shared by the local and the Ray engine."""
