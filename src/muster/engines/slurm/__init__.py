"""Trials in Slurm jobs: pilots host them, one after another, and connect back to the driver."""
