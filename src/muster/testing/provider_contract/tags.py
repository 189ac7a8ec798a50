"""Tests tags, and many threads at a time."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from muster.testing.provider_contract.fixture import ProviderFixture, promised


def at_once(jobs: list[Callable[[], None]]) -> list[str]:
    """Runs all jobs in threads of their own, started together; returns what they raised."""
    gate, raised = threading.Barrier(len(jobs)), []

    def run(job: Callable[[], None]) -> None:
        gate.wait()
        try:
            job()
        except Exception as error:  # noqa: BLE001 - a provider may raise anything
            raised.append(f"{type(error).__name__}: {error}")

    threads = [threading.Thread(target=run, args=(job,)) for job in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return raised


class TagPromises(ProviderFixture):
    """TagPromises test that tags are written, read, merged and searched."""

    def test_tags_given_to_create_are_read_at_once(self, provider: Any) -> None:  # noqa: ANN401
        given = self.tags(provider, request="r-tags")
        self.call_create(provider, given)
        node_id = provider.non_terminated_nodes({})[0]
        read = provider.node_tags(node_id)
        promised(
            given.items() <= read.items(),
            f"create_node was given the tags {given}, node_tags returned {read}",
            "the tags of create_node are on the node when it returns",
        )

    def test_tags_are_merged_and_read_at_once(self, provider: Any) -> None:  # noqa: ANN401
        first, second = self.create(provider, 2, kept="before", changed="before")
        provider.set_node_tags(first, {"changed": "after", "added": "after"})
        names = ("kept", "changed", "added")
        read = {name: provider.node_tags(first).get(name) for name in names}
        promised(
            read == {"kept": "before", "changed": "after", "added": "after"},
            f"a node tagged kept=before changed=before was given changed=after added=after; it reads {read}",
            "set_node_tags writes the tags it is given, at once, and leaves the others as they are",
        )
        other = {name: provider.node_tags(second).get(name) for name in names}
        promised(
            other == {"kept": "before", "changed": "before", "added": None},
            f"set_node_tags({first!r}, ...) changed another node, {second!r}, to {other}",
            "set_node_tags changes one node only",
        )

    def test_a_listing_by_tags_matches_all_of_them(self, provider: Any) -> None:  # noqa: ANN401
        red = self.create(provider, colour="red", size="big")
        blue = self.create(provider, colour="blue", size="big")
        asked: list[tuple[dict[str, str], list[str]]] = [
            ({"colour": "red"}, red),
            ({"size": "big"}, red + blue),
            ({"colour": "blue", "size": "big"}, blue),
            ({"colour": "red", "size": "small"}, []),
            ({"colour": "re"}, []),
            ({"nobody-has": "this"}, []),
        ]
        for filters, expected in asked:
            found = provider.non_terminated_nodes(dict(filters))
            promised(
                sorted(found) == sorted(expected),
                f"non_terminated_nodes({filters}) is {sorted(found)}, not {sorted(expected)}",
                "a node is listed when it has every tag of the filter with exactly that value",
            )


class ThreadPromises(ProviderFixture):
    """ThreadPromises test creating, tagging, listing and terminating from several threads."""

    def test_nodes_made_tagged_and_ended_by_many_threads_come_out_right(self, provider: Any) -> None:  # noqa: ANN401
        def live(number: int) -> None:
            self.call_create(provider, self.tags(provider, worker=str(number)))
            node_id = provider.non_terminated_nodes({"worker": str(number)})[0]
            provider.set_node_tags(node_id, {"seen": str(number)})
            if number % 2:
                provider.terminate_node(node_id)

        raised = at_once([lambda n=n: live(n) for n in range(self.crowd)])  # type: ignore[misc]
        promised(
            not raised,
            f"{self.crowd} threads, each creating and tagging a node of its own, met {raised}",
            "methods may be called from several threads at a time",
        )
        left = [provider.node_tags(node_id) for node_id in provider.non_terminated_nodes({})]
        seen = sorted((tags.get("worker"), tags.get("seen")) for tags in left)
        expected = sorted((str(n), str(n)) for n in range(0, self.crowd, 2))
        promised(
            seen == expected,
            f"of nodes 0..{self.crowd - 1}, the odd ones ended by their threads, (made, tagged) are {seen}",
            "nothing is lost or mixed up when several threads create, tag and terminate",
        )

    def test_no_tag_is_lost_when_many_threads_tag_one_node(self, provider: Any) -> None:  # noqa: ANN401
        node_id = self.create(provider)[0]
        jobs: list[Callable[[], None]] = [
            lambda n=n: provider.set_node_tags(node_id, {f"from-{n}": str(n)})  # type: ignore[misc]
            for n in range(self.crowd)
        ]
        raised = at_once(jobs)
        read = provider.node_tags(node_id)
        lost = [n for n in range(self.crowd) if read.get(f"from-{n}") != str(n)]
        promised(
            not raised and not lost,
            f"{self.crowd} threads wrote one tag each on the same node; lost: {lost}; raised: {raised}",
            "set_node_tags is thread-safe: reading, merging and writing happen as one step",
        )
