"""Run the workers of a RayCluster: watches its pods, and edits its groups for KubeRay to act on."""
