"""Keep the compact history of a cluster: what was asked for, what there was, what it cost, and why."""
