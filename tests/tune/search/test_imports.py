from __future__ import annotations

import importlib
import subprocess
import sys

import pytest

import muster.tune.search as search
from muster import tune
from muster.tune.search.ax import AxSearch


def test_nothing_heavy_is_imported_with_the_modules():
    code = (
        "import sys, muster.tune.search as s;"
        "from muster.tune.search import BasicVariantGenerator, ConcurrencyLimiter, Repeater, SearchGenerator;"
        "import muster.tune.search.sample, muster.tune.search.variant_generator, muster.tune.search.optuna;"
        "import muster.tune.search.ax, muster.tune.search.bayesopt, muster.tune.search.bohb;"
        "import muster.tune.search.tpe;"
        "import muster.tune.search.hyperopt, muster.tune.search.nevergrad, muster.tune.search.zoopt;"
        "made = BasicVariantGenerator();"
        "made.save_state();"
        "print([m for m in ('numpy', 'optuna', 'cloudpickle', 'asyncio', 'pandas') if m in sys.modules])"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout.strip() == "[]"


@pytest.mark.parametrize("name", search.__all__)
def test_every_public_name_is_there(name):
    assert getattr(search, name) is not None


def test_rays_module_paths_exist():
    paths = {
        "basic_variant": "BasicVariantGenerator",
        "concurrency_limiter": "ConcurrencyLimiter",
        "repeater": "TRIAL_INDEX",
        "sample": "Domain",
        "searcher": "Searcher",
        "search_algorithm": "SearchAlgorithm",
        "search_generator": "SearchGenerator",
        "variant_generator": "generate_variants",
        "ax": "AxSearch",
        "bayesopt": "BayesOptSearch",
        "bohb": "TuneBOHB",
        "hyperopt": "HyperOptSearch",
        "nevergrad": "NevergradSearch",
        "zoopt": "ZOOptSearch",
        "optuna": "OptunaSearch",
        "optuna.optuna_search": "OptunaSearch",
    }
    for module, name in paths.items():
        assert hasattr(importlib.import_module(f"muster.tune.search.{module}"), name)


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="Bogus"):
        _ = search.Bogus


def test_axs_parameters_are_made_without_ax():
    space = {"x": tune.loguniform(0.1, 1), "n": {"c": tune.choice(["a"]), "i": tune.randint(1, 4)}, "k": 3}
    assert AxSearch.convert_search_space(space) == [
        {"name": "x", "type": "range", "bounds": [0.1, 1.0], "value_type": "float", "log_scale": True},
        {"name": "n/c", "type": "choice", "values": ["a"]},
        {"name": "n/i", "type": "range", "bounds": [1, 3], "value_type": "int", "log_scale": False},
        {"name": "k", "type": "fixed", "value": 3},
    ]
