"""Store the ledger of a cluster: instances, their history, the outbox of effects."""
