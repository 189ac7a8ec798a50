"""Adapt clouds, hosts and processes to `cluster.ports.CloudProvider`; a provider is imported when named."""
