"""Write TensorBoard event files without TensorBoard."""
