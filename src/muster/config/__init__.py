"""The cluster YAML and the demand file, typed: files in, checked values out, errors that name the line."""
