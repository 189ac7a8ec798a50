"""Defines callbacks that report a framework's metrics and checkpoints to the tuner.

Each module (`lightgbm`, `xgboost`, `pytorch_lightning`, `keras`, `ray_train`) needs the framework that it is
named after.
"""
