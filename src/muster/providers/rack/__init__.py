"""Run clusters on computers that are there already: a rack, shared by a lock on each host."""
