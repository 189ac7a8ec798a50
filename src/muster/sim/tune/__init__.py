"""Run experiments in virtual time: trials are functions of a config and an iteration."""
