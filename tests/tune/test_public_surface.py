"""What Ray Tune 2.60 exports is here with a compatible signature, or left out for a reason."""

from __future__ import annotations

import importlib
import importlib.util
import subprocess
import sys

import pytest
from tests.parity import left_out
from tests.parity.surface import differences, incompatible, our_name, recorded

RAY = recorded()


def _is_left_out(module: str) -> bool:
    return any(module == each or module.startswith(f"{each}.") for each in left_out.MODULES)


def _excused(place: str) -> str | None:
    """The key in the table that excuses this difference."""
    if place in left_out.NAMES:
        return place
    member = place.partition(":")[2]
    return member if member in left_out.MEMBERS else None


def _found() -> dict[str, str]:
    found: dict[str, str] = {}
    for module, names in RAY.items():
        if not _is_left_out(module) and "not_importable" not in names:
            found |= differences(module, names)
    return found


FOUND = _found()


def test_every_name_of_ray_is_here_or_left_out_with_a_reason():
    assert {place: what for place, what in FOUND.items() if _excused(place) is None} == {}


def test_nothing_is_excused_that_is_not_missing():
    used = {_excused(place) for place in FOUND}
    assert sorted((left_out.NAMES.keys() | left_out.MEMBERS.keys()) - used) == []


def test_every_module_that_is_left_out_is_one_of_rays_and_cannot_be_imported(monkeypatch):
    monkeypatch.setenv("MUSTER_OLDER_API", "0")  # which has some of them for older scripts
    assert sorted(set(left_out.MODULES) - set(RAY)) == []
    present = []
    for module in left_out.MODULES:
        try:
            importlib.import_module(our_name(module))
        except ImportError:
            continue
        present.append(module)
    assert present == []


def test_every_reason_is_one_line():
    reasons = [*left_out.MODULES.values(), *left_out.NAMES.values(), *left_out.MEMBERS.values()]
    assert [reason for reason in reasons if not reason.strip() or "\n" in reason] == []


def test_tune_lists_exactly_what_ray_lists_and_nothing_it_lacks():
    from muster import tune

    assert sorted(set(RAY["ray.tune"]) - set(tune.__all__)) == []
    assert [name for name in tune.__all__ if getattr(tune, name) is None] == []


def test_integrations_that_need_a_library_are_where_ray_has_them():
    libraries = ("keras", "lightgbm", "pytorch_lightning", "xgboost")
    found = [name for name in libraries if importlib.util.find_spec(f"muster.tune.integration.{name}")]
    assert found == list(libraries)


def test_the_module_of_results_serves_the_class_and_the_names_of_keys():
    from muster.tune.result import DEFAULT_METRIC, TRAINING_ITERATION, Result

    assert (DEFAULT_METRIC, TRAINING_ITERATION, Result.__name__) == (
        "_metric",
        "training_iteration",
        "Result",
    )


def test_importing_tune_and_its_key_constants_loads_nothing_heavy():
    heavy = ("numpy", "pandas", "optuna", "rich", "fsspec", "yaml", "sqlite3", "multiprocessing")
    code = f"import sys, muster.tune, muster.tune.result\nprint([m for m in {heavy!r} if m in sys.modules])"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "[]"


@pytest.mark.slow
def test_run_stays_a_function_whatever_is_imported_first():
    code = (
        "import muster.tune.tune, muster.tune.experiment\nfrom muster import tune\nprint(callable(tune.run))"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "True"


@pytest.mark.parametrize(
    ("theirs", "ours", "complaint"),
    [
        ("a, b=1", lambda a, b=1: None, None),
        ("a, b=1", lambda a, b=1, *, ours=None: None, None),
        ("a, b=1", lambda a, **more: None, "'b' is not parameter 2"),
        ("a, *, b=1", lambda a, **more: None, None),
        ("a, *, b=1", lambda a, *, b=2: None, "b=2, in Ray 1"),
        ("a", lambda a, b: None, "demands b"),
        ("a=None", lambda a: None, "a=<class 'inspect._empty'>, in Ray None"),
        ("a, **more", lambda a: None, "takes no **more"),
        ("a, _private=1", lambda a: None, None),
    ],
)
def test_a_signature_is_compatible_when_every_call_ray_accepts_means_the_same(theirs, ours, complaint):
    assert incompatible(theirs, ours) == complaint
