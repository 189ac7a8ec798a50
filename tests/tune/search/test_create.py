from __future__ import annotations

import re

import pytest

from muster.tune.search import SEARCH_ALG_IMPORT
from muster.tune.search.basic_variant import BasicVariantGenerator
from muster.tune.search.create import create_searcher
from muster.tune.search.optuna import OptunaSearch


def test_a_parameter_of_other_searchers_is_left_out_with_a_warning(caplog):
    made = create_searcher("optuna", metric="loss", mode="min", n_initial_points=3)
    assert (type(made), made.metric) == (OptunaSearch, "loss")
    (record,) = caplog.records
    assert re.search(r"\bOptunaSearch\b.*\bn_initial_points\b", record.getMessage())


def test_a_parameter_that_no_searcher_takes_is_left_out_with_a_warning_that_names_the_nearest_one(caplog):
    assert create_searcher("optuna", metrik="loss").metric is None
    assert create_searcher("random", zzz=1, max_concurrent=2).max_concurrent == 2
    assert all(word in caplog.text for word in ("metrik", "'metric'", "zzz", "points_to_evaluate"))


def test_seed_is_understood_by_all():
    assert type(create_searcher("random", seed=1)) is BasicVariantGenerator
    assert create_searcher("optuna", seed=1).set_search_properties("loss", "min", {}) is True
    pytest.importorskip("hyperopt")
    pytest.importorskip("zoopt")
    drawn = []
    for seed in (1, 1, 2):
        made = create_searcher("hyperopt", seed=seed)
        drawn.append(made._random.random())
    assert drawn[0] == drawn[1] != drawn[2]
    assert type(create_searcher("zoopt", seed=1, budget=10, gamma=3)).__name__ == "ZOOptSearch"
    with pytest.raises(ValueError, match=r"^ZOOptSearch .*\bbugdet;"):
        create_searcher("zoopt", budget=10, bugdet=1)


def test_what_a_library_lacks_is_said():
    with pytest.raises(ValueError, match=r"^HEBOSearch .*numpy"):
        create_searcher("hebo")
    with pytest.raises(ImportError, match=r"^HEBOSearch .*numpy"):
        from muster.tune.search.hebo import HEBOSearch  # noqa: F401


@pytest.mark.parametrize("name", ["ax", "bohb"])
def test_a_library_that_is_not_installed_is_an_import_error_with_the_command(name):
    try:
        create_searcher(name)
    except ImportError as error:
        assert f'"muster-ml[{name}]"' in str(error)


def test_rays_table_of_searchers_imports_them():
    assert SEARCH_ALG_IMPORT["random"]() is BasicVariantGenerator
    assert (SEARCH_ALG_IMPORT["optuna"](), "zoopt" in SEARCH_ALG_IMPORT) == (OptunaSearch, True)
