"""Check nodes: seen at once, gone at once, each with its own id and address, none lost."""

from __future__ import annotations

from muster.providers.contract.subject import ProviderSubject, check, checks_in, keeps_tags, several
from muster.providers.contract.watch import ClustersMixed, PromiseBroken, WatchedProvider, promised

APART = "nodes are kept apart by cluster_name: one cluster must never end another's machines"
UNUSED_IP = "203.0.113.255"


@check(2)
def a_cluster_sees_only_its_own_nodes(subject: ProviderSubject) -> str:
    ours, theirs = subject.provider(), subject.provider()
    if others := subject.others(ours):
        raise ClustersMixed(f"the new cluster {ours.cluster_name!r} lists {others}", APART)
    mine, other = subject.create(ours), subject.create(theirs)
    seen = subject.listed(ours), subject.listed(theirs)
    told = (
        f"cluster {ours.cluster_name!r} made {mine} and sees {seen[0]};"
        f" cluster {theirs.cluster_name!r} made {other} and sees {seen[1]}"
    )
    for provider, ids, new in ((ours, seen[0], mine), (theirs, seen[1], other)):
        if any(subject.is_strange(provider, node_id) for node_id in ids if node_id not in new):
            raise ClustersMixed(told, APART)
    promised(
        seen == (mine, other) and bool(mine) and bool(other),
        told,
        "nodes are listed as soon as create_node returns",
    )
    return told


@check(several)
def as_many_nodes_as_asked_for_are_listed_when_create_returns(subject: ProviderSubject) -> str:
    provider, count = subject.provider(), subject.several
    new = subject.create(provider, count)
    promised(
        len(new) == count and len(set(new)) == count,
        f"create_node(count={count}) returned, and non_terminated_nodes({{}}) lists {new}",
        "as many nodes as asked for, each once, are listed as soon as create_node returns",
    )
    return f"asked for {count}, listed are {new}"


@check(several)
def ids_that_create_returns_are_those_listed(subject: ProviderSubject) -> str:
    provider = subject.provider()
    tags = subject.tags(provider.cluster_name)
    returned = subject.call_create(provider, tags, subject.several)
    listed = set(subject.listed(provider))
    promised(
        returned is None or (isinstance(returned, dict) and set(returned) == listed),
        f"create_node returned {returned!r}, listed are {sorted(listed)}",
        "create_node returns None, or a dict whose keys are the ids of the nodes it made",
    )
    return "create_node returned None" if returned is None else f"create_node returned {sorted(listed)}"


@check(several)
def a_terminated_node_is_not_listed_any_more_and_the_others_stay(subject: ProviderSubject) -> str:
    provider = subject.provider()
    new = _created(subject, provider)
    provider.terminate_node(new[0])
    left = subject.listed(provider)
    promised(
        new[0] not in left,
        f"terminate_node({new[0]!r}) returned, and the node is still listed",
        "a node is not listed any more once terminate_node has returned",
    )
    promised(
        set(left) == set(new[1:]),
        f"terminate_node({new[0]!r}) left {sorted(left)} of {sorted(new)}",
        "terminate_node ends the node it was asked to end and no other",
    )
    return f"of {new}, terminate_node({new[0]!r}) left {left}"


@check(several)
def several_are_terminated_with_one_call(subject: ProviderSubject) -> str:
    provider = subject.provider()
    new = _created(subject, provider)
    provider.terminate_nodes(new[:-1])
    left = subject.listed(provider)
    promised(
        list(left) == new[-1:],
        f"terminate_nodes({new[:-1]}) left {left}",
        "terminate_nodes ends all nodes it is given, and no other",
    )
    return f"of {new}, terminate_nodes({new[:-1]}) left {left}"


@check(lambda sizes: 2 * sizes.several)
def an_id_that_is_used_again_stands_for_the_new_node(subject: ProviderSubject) -> str:
    provider = subject.provider()
    first = _created(subject, provider)
    provider.terminate_nodes(first)
    second = subject.create(provider, subject.several, request="r-2")
    if not keeps_tags(provider):
        return f"after {first}, {second}; their tags are the manager's"
    requests = {node_id: provider.node_tags(node_id).get("ray-launch-request") for node_id in second}
    promised(
        len(second) == subject.several and set(requests.values()) == {"r-2"},
        f"after terminating {first}, new nodes of request r-2 are listed with requests {requests}",
        "an id may be used again once its node is terminated; it then has the tags of the new launch, by"
        " which the autoscaler tells the new node from the old one",
    )
    return f"after {first} came {second}, with the tags of the second launch"


@check(several)
def no_two_living_nodes_have_the_same_address(subject: ProviderSubject) -> str:
    provider = subject.provider()
    new = _created(subject, provider)
    subject.until(lambda: all(provider.internal_ip(node_id) for node_id in new))
    seen = []
    for question in ("internal_ip", "external_ip"):
        known = {node_id: getattr(provider, question)(node_id) for node_id in new}
        shown = [ip for ip in known.values() if ip]
        promised(
            len(shown) == len(set(shown)),
            f"{question} of living nodes: {known}",
            "an address belongs to one living node (None while there is none)",
        )
        seen.append(f"{question} {list(known.values())}")
    return ", ".join(seen)


@check(1)
def running_and_terminated_agree_with_the_list(subject: ProviderSubject) -> str:
    provider = subject.provider()
    node_id = _created(subject, provider, 1)[0]
    promised(
        not provider.is_terminated(node_id),
        f"is_terminated({node_id!r}) is True, although the node is listed",
        "a listed node is not terminated",
    )
    began = subject.clock.monotonic()
    limit_s = subject.sizes.starts_within_s
    promised(
        subject.until(lambda: bool(provider.is_running(node_id))),
        f"is_running({node_id!r}) was not True within {limit_s:g} s",
        "a node that was created is running after a while (`starts_within_s` of a contract class,"
        " --starts-within of the command)",
    )
    took_s = subject.clock.monotonic() - began
    provider.terminate_node(node_id)
    subject.listed(provider)  # single nodes may be answered from the newest list
    is_terminated, is_running = provider.is_terminated(node_id), provider.is_running(node_id)
    promised(
        is_terminated and not is_running,
        f"after terminate_node: is_terminated {is_terminated}, is_running {is_running}",
        "a node that was terminated is terminated and not running, also when asked later",
    )
    return f"{node_id} ran after {took_s:.1f} s, and is terminated since it was ended"


@check(several)
def a_node_is_found_by_its_address(subject: ProviderSubject) -> str:
    provider = subject.provider()
    new = _created(subject, provider)
    subject.until(lambda: all(provider.internal_ip(node_id) for node_id in new))
    seen = []
    for node_id in new:
        ip = provider.internal_ip(node_id)
        if ip is None:
            continue
        found = provider.get_node_id(ip, use_internal_ip=True)
        promised(
            found == node_id,
            f"get_node_id({ip!r}, use_internal_ip=True) is {found!r}, not {node_id!r}",
            "get_node_id finds the living node with that address",
        )
        seen.append(f"{ip} is {node_id}")
    _expect_value_error(provider)
    return f"{', '.join(seen) or 'no node has an address'}; ValueError for {UNUSED_IP}"


def _expect_value_error(provider: WatchedProvider) -> None:
    try:
        found = provider.get_node_id(UNUSED_IP, use_internal_ip=True)
    except ValueError:
        return
    raise PromiseBroken(
        f"get_node_id of an unused address returned {found!r}",
        "it raises ValueError when no living node has the address",
    )


@check(several)
def a_second_object_sees_and_ends_the_same_nodes(subject: ProviderSubject) -> str:
    provider = subject.provider()
    new = subject.create(provider, subject.several, note="kept")
    second = subject.provider(provider.cluster_name)
    listed = subject.listed(second)
    promised(
        sorted(listed) == sorted(new),
        f"one object made {sorted(new)}; a new object for the same cluster lists {sorted(listed)}",
        "what is known of the nodes survives the object: the monitor is restarted now and then",
    )
    if keeps_tags(provider):
        notes = [second.node_tags(node_id).get("note") for node_id in new]
        promised(
            notes == ["kept"] * len(new),
            f"the tag note='kept' reads {notes} through a new object for the same cluster",
            "tags survive the object: they show which cluster owns a machine",
        )
    for node_id in new[:1]:
        second.terminate_node(node_id)
    left = subject.listed(subject.provider(provider.cluster_name))
    promised(
        sorted(left) == sorted(new[1:]),
        f"a new object terminated {new[:1]}; the next one lists {sorted(left)}",
        "any object of a cluster can terminate its nodes, and any other sees it",
    )
    return f"one object made {new}, a second one ended {new[:1]}, a third one lists {left}"


def _created(subject: ProviderSubject, provider: WatchedProvider, count: int | None = None) -> list[str]:
    """Return new nodes; PromiseBroken where fewer are listed than the line needs to show anything."""
    wanted = subject.several if count is None else count
    new = subject.create(provider, wanted)
    promised(
        len(new) == wanted,
        f"create_node(count={wanted}) returned, and non_terminated_nodes({{}}) lists {new}",
        "as many nodes as asked for, each once, are listed as soon as create_node returns",
    )
    return new


CHECKS = checks_in(globals())
