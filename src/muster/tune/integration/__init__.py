"""Defines callbacks that report a framework's metrics and checkpoints to the tuner.

Each module (`lightgbm`, `xgboost`, `pytorch_lightning`, `keras`) needs the framework it is named after.
"""
