"""What user code calls inside a running trial; must stay light, a trial process imports little else."""
