"""The public names of Ray Tune, on muster's own controller. Importing it loads nothing heavy."""
