"""Trials that are commands: the template, its checks, and what runs a command in a trial's process."""
