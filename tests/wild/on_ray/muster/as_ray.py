"""Do nothing: `import ray` finds the real one."""
