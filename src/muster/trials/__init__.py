"""Hold the tuning domain: trial states, decisions, commands. No module here knows an engine or does I/O."""
