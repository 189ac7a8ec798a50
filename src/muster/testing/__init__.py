"""What tests of muster, and of code built on it, share; never imported by the product itself."""
