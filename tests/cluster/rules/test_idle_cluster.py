"""A cluster that no driver uses is suspended or deleted, where its provider can do that."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from tests.cluster.worlds import following, spec, world
from tests.mistakes.views import assert_line
from tests.support.builders import NOW

from muster.cluster.model import DriverReport, IdleCluster, IdlePolicy
from muster.cluster.plan import EndCluster, Reason
from muster.cluster.reconcile import reconcile
from muster.cluster.rules.effects import AGAIN_S
from muster.cluster.snapshot import Memory, ProviderTraits, WithoutDrivers

BOTH = ProviderTraits(idle_policies=(IdlePolicy.SUSPEND, IdlePolicy.DELETE))
NOBODY = DriverReport(last_end=500.0)
WANTED = IdleCluster(timeout_s=60.0)


def seen(drivers, known=WithoutDrivers(), *, wanted=WANTED, traits=BOTH):  # noqa: B008 - it is frozen
    given = world(spec=spec(idle_cluster=wanted), traits=traits, memory=Memory(without_drivers=known))
    return replace(given, runtime=replace(given.runtime, drivers=drivers))


def ends(plan):
    return [action.policy for action in plan.actions if isinstance(action, EndCluster)]


def kept(given):
    return reconcile(given).memory.without_drivers


SINCE = WithoutDrivers(since=NOW - 60.0, last_end=500.0)


@pytest.mark.conformance("KI-2")
def test_a_driver_keeps_the_cluster():
    given = seen(DriverReport(live=1, last_end=500.0), SINCE)
    assert (ends(reconcile(given)), kept(given)) == ([], WithoutDrivers(last_end=500.0))


@pytest.mark.conformance("KI-4")
@pytest.mark.parametrize("is_report_lost", [True, False])
def test_what_is_not_known_counts_as_a_driver(is_report_lost):
    given = seen(None, SINCE)
    given = replace(given, runtime=None) if is_report_lost else given
    assert (ends(reconcile(given)), kept(given)) == ([], WithoutDrivers(last_end=500.0))


@pytest.mark.conformance("KI-5")
def test_a_cluster_whose_owner_asked_for_nothing_stays():
    given = seen(NOBODY, SINCE, wanted=None)
    assert (ends(reconcile(given)), kept(given)) == ([], WithoutDrivers())


@pytest.mark.conformance("KI-6")
def test_the_whole_time_passes_before_the_cluster_ends():
    first = seen(NOBODY)
    assert (ends(reconcile(first)), kept(first)) == ([], WithoutDrivers(since=NOW, last_end=500.0))
    nearly = seen(NOBODY, replace(SINCE, since=NOW - 59.9))
    assert ends(reconcile(nearly)) == []
    due = seen(NOBODY, SINCE)
    assert (ends(reconcile(due)), kept(due)) == ([IdlePolicy.SUSPEND], replace(SINCE, asked_at=NOW))


@pytest.mark.conformance("KI-7")
def test_a_driver_that_comes_starts_the_time_anew():
    came = seen(DriverReport(live=1, last_end=500.0), replace(SINCE, since=NOW - 50.0))
    gone = following(came, reconcile(came), runtime=seen(NOBODY).runtime)
    assert kept(gone) == WithoutDrivers(since=gone.now, last_end=500.0)


@pytest.mark.conformance("KI-8", "KI-3")
def test_a_driver_that_came_and_went_between_two_looks_is_known_by_its_end():
    given = seen(DriverReport(last_end=501.0), SINCE)
    assert (ends(reconcile(given)), kept(given)) == ([], WithoutDrivers(since=NOW, last_end=501.0))


@pytest.mark.conformance("KI-12")
def test_the_cluster_is_asked_once_and_again_only_when_it_is_still_there():
    asked = replace(SINCE, asked_at=NOW - AGAIN_S + 1)
    assert (ends(reconcile(seen(NOBODY, asked))), kept(seen(NOBODY, asked))) == ([], asked)
    long_ago = seen(NOBODY, replace(SINCE, asked_at=NOW - AGAIN_S))
    assert ends(reconcile(long_ago)) == [IdlePolicy.SUSPEND]


@pytest.mark.conformance("KI-14")
def test_a_cluster_is_deleted_only_where_the_provider_can():
    delete = IdleCluster(timeout_s=60.0, policy=IdlePolicy.DELETE)
    assert ends(reconcile(seen(NOBODY, SINCE, wanted=delete))) == [IdlePolicy.DELETE]
    plan = reconcile(
        seen(NOBODY, SINCE, wanted=delete, traits=ProviderTraits(idle_policies=(IdlePolicy.SUSPEND,)))
    )
    assert ends(plan) == []
    (said,) = [v.detail for v in plan.verdicts if v.reason is Reason.WITHOUT_DRIVERS]
    assert_line("cluster", "idle cluster that stays", said)


def test_a_read_only_provider_ends_nothing():
    assert ends(reconcile(seen(NOBODY, SINCE, traits=replace(BOTH, read_only=True)))) == []
