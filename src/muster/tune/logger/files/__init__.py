"""The one writer of the result files of trials."""
