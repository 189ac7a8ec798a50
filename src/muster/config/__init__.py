"""Read the cluster YAML and the demand file: files in, checked values out, errors that name the line."""
