"""Ray's import path of the domain classes, their samplers and the functions that make them."""

from __future__ import annotations

from muster.tune.search.domains import Categorical, Domain, Float, Function, Integer
from muster.tune.search.samplers import BaseSampler, Grid, LogUniform, Normal, Quantized, Sampler, Uniform
from muster.tune.search.space import (
    choice,
    lograndint,
    loguniform,
    qlograndint,
    qloguniform,
    qrandint,
    qrandn,
    quniform,
    randint,
    randn,
    sample_from,
    uniform,
)

__all__ = [
    "BaseSampler",
    "Categorical",
    "Domain",
    "Float",
    "Function",
    "Grid",
    "Integer",
    "LogUniform",
    "Normal",
    "Quantized",
    "Sampler",
    "Uniform",
    "choice",
    "lograndint",
    "loguniform",
    "qlograndint",
    "qloguniform",
    "qrandint",
    "qrandn",
    "quniform",
    "randint",
    "randn",
    "sample_from",
    "uniform",
]
