"""The control service (GCS) of a Ray cluster: what its nodes do, what waits, and what we tell it.

Importing these modules does not import Ray; connecting does.
"""
