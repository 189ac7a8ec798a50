"""Implement the `muster` command: files and options in, tables or JSON out, no decisions here."""
