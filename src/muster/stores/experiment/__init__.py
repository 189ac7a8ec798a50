"""Store the facts of one experiment, in SQLite and in memory."""
