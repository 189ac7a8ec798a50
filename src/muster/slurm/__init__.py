"""What muster knows of Slurm: its commands as a wire, and what they print as values."""
