"""Run Ray nodes as processes of this computer: laptop clusters, demos, end-to-end tests."""
