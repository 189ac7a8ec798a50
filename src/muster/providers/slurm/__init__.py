"""The provider kind `slurm`: Ray nodes are Slurm jobs."""
