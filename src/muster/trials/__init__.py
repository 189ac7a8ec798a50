"""The tuning domain: trial state, decisions, commands; no engine knowledge and no I/O."""
