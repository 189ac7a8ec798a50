"""Read a Ray cluster for the autoscaler and report to it, through its GCS."""
