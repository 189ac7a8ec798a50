"""Trainables that Ray's documentation imports from its examples: `mnist_pytorch` and `pbt_function`."""
