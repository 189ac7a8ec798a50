"""Hold the pure vocabulary that every other package uses."""
