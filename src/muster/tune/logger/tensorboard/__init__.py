"""TensorBoard event files, written without TensorBoard."""
