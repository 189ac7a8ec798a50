"""Adapters from process runtimes to `trials.ports.Engine`."""
