"""Which versions of Ray are refused, used with a warning, or used."""

from __future__ import annotations

import logging
import time

import pytest
import ray
from tests.mistakes.views import assert_line

from muster.errors import EngineMissing, EngineUnreachable
from muster.runtimes.ray import native
from muster.runtimes.ray.client import within
from muster.runtimes.ray.native import is_same_line, is_tried, is_usable, minor_of


@pytest.mark.parametrize(
    ("version", "usable", "tried"),
    [
        ("2.48.0", True, True),
        ("2.60.3", True, True),
        ("2.55.1", True, False),
        ("2.61.0", True, False),
        ("2.47.1", False, False),
        ("2.9.3", False, False),
        ("1.13.0", False, False),
        ("3.0.0.dev0", False, False),
        ("unknown", False, False),
        ("", False, False),
    ],
)
def test_a_version_is_used_from_the_oldest_tried_one_on_and_within_ray_2(version, usable, tried):
    assert (is_usable(version), is_tried(version)) == (usable, tried)


def test_two_versions_are_of_one_line_when_only_the_patch_differs():
    assert is_same_line("2.60.0", "2.60.1")
    assert not is_same_line("2.48.0", "2.60.0")
    assert minor_of("2.60.0rc1") == (2, 60)


def test_an_untried_ray_is_reported_once_and_used(monkeypatch, caplog):
    monkeypatch.setattr(ray, "__version__", "2.61.0")
    monkeypatch.setattr(native, "_warned", set())
    with caplog.at_level(logging.WARNING):
        assert [native.check_ray(), native.check_ray()] == ["2.61.0", "2.61.0"]
    (warning,) = caplog.messages
    assert_line("runtimes", "untried Ray", warning)


def test_a_ray_that_is_too_old_is_refused_in_one_line(monkeypatch):
    monkeypatch.setattr(ray, "__version__", "2.47.1")
    with pytest.raises(EngineMissing) as caught:
        native.check_ray()
    assert_line("runtimes", "Ray too old", str(caught.value))


def test_trials_need_the_newest_line(monkeypatch):
    from muster.engines.ray.connect import import_ray

    monkeypatch.setattr(ray, "__version__", "2.48.0")
    with pytest.raises(EngineMissing) as caught:
        import_ray()
    assert_line("runtimes", "Ray too old for trials", str(caught.value))


class Tokenless:
    """The native module of a Ray before tokens."""


def test_a_ray_without_tokens_is_reported_where_a_token_is_wanted(monkeypatch, caplog):
    monkeypatch.setattr(native, "_warned", set())
    with caplog.at_level(logging.WARNING):
        native.reread_token(Tokenless(), {})
        native.reread_token(Tokenless(), {"RAY_AUTH_MODE": "token"})
    (warning,) = caplog.messages
    assert_line("runtimes", "Ray without tokens", warning.replace(ray.__version__, "VERSION"))


def test_the_installed_ray_has_the_calls_that_older_ones_lack():
    assert "timeout" in native.parameters_of("drain_node")
    assert native.parameters_of("get_draining_nodes")
    assert native.parameters_of("no_such_call") == frozenset()


def test_a_call_without_a_timeout_of_its_own_is_given_up():
    started = time.monotonic()
    with pytest.raises(EngineUnreachable, match=r"GCS.*h:1"):
        within(0.05, lambda: time.sleep(1), "h:1")
    assert time.monotonic() - started < 1
    assert within(5, lambda: 7, "h:1") == 7
    with pytest.raises(KeyError):
        within(5, lambda: {}["x"], "h:1")
