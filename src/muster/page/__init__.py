"""Show experiments and clusters in a browser: a server that only reads, and the page that it serves."""
