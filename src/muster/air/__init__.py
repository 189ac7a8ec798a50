"""Ray's name for what its libraries share; here, the trackers (`muster.air.integrations`)."""
