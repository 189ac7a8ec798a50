"""Check a provider through the adapter: what the autoscaler relies on when it restarts or repeats itself."""

from __future__ import annotations

from collections.abc import Sequence

from muster.base.ids import CloudId, RequestId
from muster.cluster.model import CloudInstance, FailureKind
from muster.providers.contract.subject import (
    DoesNotApply,
    ProviderSubject,
    check,
    checks_in,
    provider_with_tags,
    several,
)
from muster.providers.contract.watch import promised

FIRST = RequestId("r-1")
SERVED = "a launch that can be served is served, and its machines are listed"
BY_NUMBER = "machines that are requested by number do not carry the request they came from"
PROVOKED = (
    FailureKind.CAPACITY,
    FailureKind.QUOTA,
    FailureKind.THROTTLED,
    FailureKind.PERMISSION,
    FailureKind.CONFIG,
)


@check(1)
def a_launched_machine_is_listed_with_its_type_request_and_hash(subject: ProviderSubject) -> str:
    provider = provider_with_tags(subject, BY_NUMBER)
    port = subject.adapter(provider)
    port.launch(FIRST, {subject.machine.node_type: 1})
    failures = port.poll_launch_failures()
    promised(not failures, f"the launch failed: {failures}", SERVED)
    listed = [(m.node_type, m.request_id, m.launch_hash) for m in subject.machines(port, provider)]
    told = f"one machine was launched; the autoscaler reads (type, request, hash) {listed}"
    promised(
        listed == [(subject.machine.node_type, FIRST, "hash")],
        told,
        "a machine can be matched to its launch by the tags it was created with",
    )
    return told


@check(several)
def a_repeated_launch_buys_nothing_more(subject: ProviderSubject) -> str:
    provider = subject.provider()
    port = subject.adapter(provider)
    for _ in range(2):
        port.launch(FIRST, {subject.machine.node_type: subject.several})
    machines = subject.machines(port, provider)
    return _expect(machines, subject.several, "the same launch request was sent twice")


@check(2)
def a_launch_repeated_after_a_restart_buys_what_is_missing(subject: ProviderSubject) -> str:
    provider = provider_with_tags(subject, BY_NUMBER)
    subject.adapter(provider).launch(FIRST, {subject.machine.node_type: 1})
    restarted = subject.adapter(subject.provider(provider.cluster_name))
    before = [machine.request_id for machine in subject.machines(restarted, provider)]
    promised(
        before == [FIRST],
        f"a machine was launched for {FIRST}; after a restart the autoscaler reads machines of {before}",
        "the machines of a request are found after a restart, or they would be launched again",
    )
    restarted.launch(FIRST, {subject.machine.node_type: 2})
    what = "a launch request of 2, of which 1 was made before a restart"
    return _expect(subject.machines(restarted, provider), 2, what)


@check(2)
def terminating_again_and_terminating_strangers_succeeds(subject: ProviderSubject) -> str:
    provider = subject.provider()
    port = subject.adapter(provider)
    port.launch(FIRST, {subject.machine.node_type: 2})
    ids = [machine.cloud_id for machine in subject.machines(port, provider)]
    promised(len(ids) == 2, f"a launch of 2 is listed as {ids}", SERVED)
    port.terminate(RequestId("t-1"), ids)
    port.terminate(RequestId("t-2"), [*ids, CloudId("nobody-knows-this-node")])
    failures = port.poll_terminate_failures()
    left = [] if failures else [machine.cloud_id for machine in subject.machines(port, provider)]
    told = f"terminating {ids}, then the same and an unknown id: failures {failures}, left {left}"
    promised(
        not failures and not left,
        told,
        "machines already gone are not an error (raising is fine, as long as they are not listed)",
    )
    return told


@check(lambda sizes: len(PROVOKED))
def a_refusal_is_understood_for_what_it_is(subject: ProviderSubject) -> str:
    seen = [text for text in (_refusal(subject, kind) for kind in PROVOKED) if text]
    if not seen:
        raise DoesNotApply(
            "nothing says how to provoke a refusal; --errors FILE does (in a test class: make_refused)"
        )
    return "; ".join(seen)


def _refusal(subject: ProviderSubject, kind: FailureKind) -> str:
    """Launch what is refused; returns what the autoscaler makes of it, "" where nothing provokes it."""
    order = subject.refused(kind)
    if order is None:
        return ""
    port = subject.adapter(*order)
    port.launch(RequestId(f"r-{kind.value}"), {subject.machine.node_type: 1})
    failures = port.poll_launch_failures()
    listed = [machine.cloud_id for machine in subject.machines(port, order[0])]
    promised(
        [failure.kind for failure in failures] == [kind] and not listed,
        f"a create call that should be refused for {kind.value}: the autoscaler reads"
        f" {[(failure.kind.value, failure.message) for failure in failures]}, listed are {listed}",
        f"a refusal says why: words such as {_WORDS[kind]}, the code of a big cloud, or an error of"
        " muster.errors, and makes no machine",
    )
    return f"{kind.value}: {failures[0].message!r}"


_WORDS = {
    FailureKind.CAPACITY: "'capacity' or 'sold out'",
    FailureKind.QUOTA: "'quota' or 'limit exceeded'",
    FailureKind.THROTTLED: "'throttled' or 'rate limit'",
    FailureKind.PERMISSION: "'permission' or 'not authorized'",
    FailureKind.CONFIG: "'invalid' or 'does not exist'",
}


def _expect(listed: Sequence[CloudInstance], count: int, what: str) -> str:
    promised(len(listed) >= count, f"{what}: {len(listed)} of {count} machines are listed", SERVED)
    told = f"{what}: there are {len(listed)} machines, not {count}"
    promised(
        len(listed) == count,
        told,
        "machines of a request are found by non_terminated_nodes with its ray-launch-request tag, so that"
        " a repeated request never buys twice",
    )
    return f"{what}: there are {count} machines"


CHECKS = checks_in(globals())
