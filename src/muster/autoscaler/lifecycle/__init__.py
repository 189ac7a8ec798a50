"""Bring up clusters whose head is another machine, and everything that users do with a running one."""
