"""Adapters from clouds, hosts and processes to `cluster.ports.CloudProvider`; imported when named."""
