"""A simulated EC2, with its calls, its shortages and its notices."""
