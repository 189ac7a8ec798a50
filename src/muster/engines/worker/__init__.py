"""The process of a trial and the driver's handle on it; shared by the local and the Ray engine."""
