"""The autoscaler domain: pure planning, and a loop over ports."""
