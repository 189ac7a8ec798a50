"""Adapt this operating system: CPUs and memory, processes, files, locks, ports."""
