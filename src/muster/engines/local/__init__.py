"""The embedded engine: every trial is a process on this machine."""
