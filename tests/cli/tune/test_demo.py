"""`muster tune demo`: what a newcomer types second."""

from __future__ import annotations

import pytest

from muster.tune.examples import first_run


@pytest.mark.slow
def test_the_demo_finds_a_good_network_and_draws_it(tune, tmp_path, monkeypatch):
    monkeypatch.setattr(first_run, "TRIALS", 6)
    monkeypatch.setattr("muster.tune.plots.find_spec", lambda name: None)  # as on a base install
    result = tune("demo", tmp_path)
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines()[-1] == f"Plot: {tmp_path / 'demo' / 'results.html'}"
    assert "<html" in (tmp_path / "demo" / "results.html").read_text(encoding="utf-8")
    assert "6 TERMINATED" in tune("show", tmp_path / "demo").stdout
