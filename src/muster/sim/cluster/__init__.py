"""The simulated cluster: a world in virtual time under the real controller."""
