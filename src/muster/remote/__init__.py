"""Run commands on machines that muster did not start itself: over SSH, in containers, for many at once."""
