"""Writes TensorBoard event files without TensorBoard."""
