"""Vocabulary shared by both domains: values, checked tables, injected time; no I/O."""
