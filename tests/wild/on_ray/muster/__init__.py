"""A stand-in for muster: the same script then runs on the real Ray."""
