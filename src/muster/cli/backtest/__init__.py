"""Implements `muster backtest`."""
