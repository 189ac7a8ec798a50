"""Answer `import ray` with muster, where `muster.as_ray` switches it on; `site` holds the `ray` package."""
