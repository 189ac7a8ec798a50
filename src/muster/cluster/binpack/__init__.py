"""The planner: demand onto existing, coming and new nodes; values in, values out."""
