"""What the autoscaler reads from a Ray cluster and reports to it, through its GCS."""
