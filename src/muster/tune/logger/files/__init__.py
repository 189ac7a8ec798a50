"""Write the result files of all trials."""
