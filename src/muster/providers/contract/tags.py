"""Check tags, and many threads at a time."""

from __future__ import annotations

import threading
from collections.abc import Callable

from muster.base.untrusted import error_text
from muster.providers.contract.subject import ProviderSubject, check, checks_in, crowd, provider_with_tags
from muster.providers.contract.watch import PromiseBroken, promised

OF_MANAGER = "machines that are requested by number have the tags of their manager"


def at_once(jobs: list[Callable[[], object]]) -> list[str]:
    """Run all jobs in separate threads, started together; return what they raised, each text once."""
    gate = threading.Barrier(len(jobs))
    raised: dict[str, None] = {}

    def run(job: Callable[[], object]) -> None:
        gate.wait()
        try:
            job()
        except Exception as error:  # noqa: BLE001 - a provider may raise anything
            raised[error.did if isinstance(error, PromiseBroken) else error_text(error)] = None

    threads = [threading.Thread(target=run, args=(job,), daemon=True) for job in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return list(raised)


@check(1)
def tags_given_to_create_are_read_at_once(subject: ProviderSubject) -> str:
    provider = provider_with_tags(subject, OF_MANAGER)
    given = subject.tags(provider.cluster_name, request="r-tags")
    subject.call_create(provider, given)
    listed = subject.listed(provider)
    promised(
        len(listed) == 1, f"one node was created, listed are {listed}", "a node is listed when create returns"
    )
    read = provider.node_tags(listed[0])
    promised(
        given.items() <= read.items(),
        f"create_node was given the tags {given}, node_tags returned {read}",
        "the tags of create_node are on the node when it returns",
    )
    return f"{len(given)} tags were given, all of them read at once"


@check(2)
def tags_are_merged_and_read_at_once(subject: ProviderSubject) -> str:
    provider = provider_with_tags(subject, OF_MANAGER)
    new = subject.create(provider, 2, kept="before", changed="before")
    promised(len(new) == 2, f"2 nodes were created, listed are {new}", "nodes are listed when create returns")
    first, second = new
    provider.set_node_tags(first, {"changed": "after", "added": "after"})
    names = ("kept", "changed", "added")
    read = {name: provider.node_tags(first).get(name) for name in names}
    told = f"a node tagged kept=before changed=before was given changed=after added=after; it reads {read}"
    promised(
        read == {"kept": "before", "changed": "after", "added": "after"},
        told,
        "set_node_tags writes the tags it is given, at once, and leaves the others as they are",
    )
    other = {name: provider.node_tags(second).get(name) for name in names}
    promised(
        other == {"kept": "before", "changed": "before", "added": None},
        f"set_node_tags({first!r}, ...) changed another node, {second!r}, to {other}",
        "set_node_tags changes one node only",
    )
    return told


@check(2)
def a_listing_by_tags_matches_all_of_them(subject: ProviderSubject) -> str:
    provider = provider_with_tags(subject, OF_MANAGER)
    red = subject.create(provider, color="red", size="big")
    blue = subject.create(provider, color="blue", size="big")
    asked: list[tuple[dict[str, str], list[str]]] = [
        ({"color": "red"}, red),
        ({"size": "big"}, red + blue),
        ({"color": "blue", "size": "big"}, blue),
        ({"color": "red", "size": "small"}, []),
        ({"color": "re"}, []),
        ({"nobody-has": "this"}, []),
    ]
    for filters, expected in asked:
        found = provider.non_terminated_nodes(dict(filters))
        promised(
            sorted(found) == sorted(expected),
            f"non_terminated_nodes({filters}) is {sorted(found)}, not {sorted(expected)}",
            "a node is listed when it has every tag of the filter with exactly that value",
        )
    return f"{len(asked)} filters over {red + blue} listed what they should"


@check(crowd)
def nodes_made_tagged_and_ended_by_many_threads_come_out_right(subject: ProviderSubject) -> str:
    provider, threads = provider_with_tags(subject, OF_MANAGER), subject.crowd

    def live(number: int) -> None:
        subject.call_create(provider, subject.tags(provider.cluster_name, worker=str(number)))
        found = list(provider.non_terminated_nodes({"worker": str(number)}))
        told = f"a node with the tag worker={number} was created; a listing by that tag is {found}"
        promised(len(found) == 1, told, "a node is listed by its tags when create returns")
        node_id = found[0]
        provider.set_node_tags(node_id, {"seen": str(number)})
        if number % 2:
            provider.terminate_node(node_id)

    raised = at_once([lambda n=n: live(n) for n in range(threads)])  # type: ignore[misc]
    promised(
        not raised,
        f"{threads} threads, each creating and tagging its own node, met {raised}",
        "methods may be called from several threads at a time",
    )
    left = [provider.node_tags(node_id) for node_id in subject.listed(provider)]
    seen = sorted((tags.get("worker", ""), tags.get("seen", "")) for tags in left)
    expected = sorted((str(n), str(n)) for n in range(0, threads, 2))
    told = f"of nodes 0..{threads - 1}, the odd ones ended by their threads, (made, tagged) are {seen}"
    promised(
        seen == expected, told, "nothing is lost or mixed up when several threads create, tag and terminate"
    )
    return told


@check(1)
def no_tag_is_lost_when_many_threads_tag_one_node(subject: ProviderSubject) -> str:
    provider, threads = provider_with_tags(subject, OF_MANAGER), subject.crowd
    new = subject.create(provider)
    promised(bool(new), "create_node returned, and no node is listed", "a node is listed when create returns")
    node_id = new[0]
    jobs: list[Callable[[], object]] = [
        lambda n=n: provider.set_node_tags(node_id, {f"from-{n}": str(n)})  # type: ignore[misc]
        for n in range(threads)
    ]
    raised = at_once(jobs)
    read = provider.node_tags(node_id)
    lost = [n for n in range(threads) if read.get(f"from-{n}") != str(n)]
    told = f"{threads} threads wrote one tag each on the same node; lost: {lost}; raised: {raised}"
    promised(
        not raised and not lost,
        told,
        "set_node_tags is thread-safe: reading, merging and writing happen as one step",
    )
    return told


CHECKS = checks_in(globals())
