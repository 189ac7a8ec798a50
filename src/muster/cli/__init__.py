"""The `muster` command: files and flags in, tables or JSON out; no decisions of its own."""
