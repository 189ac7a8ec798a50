"""Implement the commands that reach a cluster on other machines: up, down, exec, attach and the like."""
