"""Names that are imported when they are first used."""

from __future__ import annotations

import subprocess
import sys
import types

import pytest

from muster.base.lazy import lazy_names


@pytest.fixture
def package(monkeypatch):
    made = types.ModuleType("lazy_package")
    inner = types.ModuleType("lazy_package.things")
    inner.Thing = type("Thing", (), {})
    made.__path__ = []
    monkeypatch.setitem(sys.modules, "lazy_package", made)
    monkeypatch.setitem(sys.modules, "lazy_package.things", inner)
    made.__getattr__, made.__dir__, made.__all__ = lazy_names(
        "lazy_package", {".things": ["Thing"], ".": ["things"]}
    )
    return made


def test_a_name_is_found_in_its_home_and_kept(package):
    assert "Thing" not in vars(package)
    assert package.Thing is sys.modules["lazy_package.things"].Thing
    assert vars(package)["Thing"] is package.Thing
    assert dir(package) == package.__all__ == ["Thing", "things"]


def test_a_name_of_the_package_itself_is_a_submodule(package):
    assert package.things is sys.modules["lazy_package.things"]


def test_a_name_whose_home_is_loaded_already_is_bound_at_once(monkeypatch):
    made = types.ModuleType("lazy_package")
    monkeypatch.setitem(sys.modules, "lazy_package", made)
    lazy_names("lazy_package", {"muster.base.lazy": ["lazy_names", "not_there"], "not.loaded": ["other"]})
    assert {name for name in vars(made) if not name.startswith("__")} == {"lazy_names"}


def test_an_unknown_name_is_an_attribute_error_that_names_the_package(package):
    with pytest.raises(AttributeError, match=r"lazy_package.*Other"):
        _ = package.Other


def test_a_submodule_that_is_not_named_is_found_as_in_ray_scripts():
    code = (
        "from muster import tune\n"
        "print(tune.schedulers.ASHAScheduler.__name__, tune.search.optuna.OptunaSearch.__name__,\n"
        "      hasattr(tune, 'no_such_part'), hasattr(tune.search.sample, 'no_such_part'))\n"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.split() == ["AsyncHyperBandScheduler", "OptunaSearch", "False", "False"]
