"""The only package that knows Ray: trials as actors (`engine`), and the cluster's GCS (`gcs`)."""
