"""Make the subject of a check from a cluster file and the class that it names; for `muster provider check`.

Its clusters are named after the run, so that what a killed run has left behind can be found and ended.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from msgspec import field
from msgspec.structs import replace

from muster.base.clock import Clock
from muster.base.ids import IdSource
from muster.base.untrusted import describe
from muster.cluster.model import FailureKind
from muster.config.check import Section, checked, nearest
from muster.config.document import Document
from muster.config.schema import ClusterConfig
from muster.config.to_spec import node_launches
from muster.errors import ConfigError
from muster.providers.bootstrap import filled_in
from muster.providers.contract.subject import CheckSizes, MachineOrder, ProviderSubject, RefusedOrder
from muster.providers.contract.watch import CallWatch, PromiseBroken
from muster.providers.v1.calls import V1Calls
from muster.providers.v1.kind import make_external, usable_class

RUN_PREFIX = "muster-check"
_RUN = re.compile(rf"{RUN_PREFIX}-[0-9a-f]+")
_CLUSTER = re.compile(rf"{RUN_PREFIX}-[0-9a-f]+-\d+")
_MODULE = "provider.module"
_OWN_CLASSES = {"aws": "muster.providers.aws.v1_view.AwsNodeProvider"}
_NOTHING_KEPT = {"cache_stopped_nodes": False}  # or Ray's providers stop machines whose disks cost on
MOST_CLUSTERS = 60  # of one run


class RefusalCase(Section, frozen=True, kw_only=True):
    """Has keys that replace those of `provider` or `node_config`, so that the cloud refuses."""

    provider: dict[str, Any] = field(default_factory=dict)
    node_config: dict[str, Any] = field(default_factory=dict)


class RefusalFile(Section, frozen=True, kw_only=True):
    """A file for `--errors`: how each kind of refusal is provoked."""

    capacity: RefusalCase | None = None
    quota: RefusalCase | None = None
    throttled: RefusalCase | None = None
    permission: RefusalCase | None = None
    config: RefusalCase | None = None

    def case(self, kind: FailureKind) -> RefusalCase | None:
        found: RefusalCase | None = getattr(self, kind.value, None)
        return found


def load_refusals(path: Path) -> RefusalFile:
    """Return the file for `--errors`; ConfigError names file, line, key and fix."""
    document = Document.load(path)
    return checked(document, (), document.data or {}, RefusalFile)


@dataclass(frozen=True)
class LiveProvider:
    """A cluster file, with the class that is to be checked in place of its provider."""

    config: ClusterConfig
    node_type: str
    class_name: str

    @property
    def price_per_hour(self) -> float | None:
        """Return the most that a machine costs: the check does not choose among the offers of its type."""
        known = self.config.available_node_types[self.node_type]
        own = known.price_per_hour
        prices = [own if offer.price_per_hour is None else offer.price_per_hour for offer in known.offers]
        found = [float(price) for price in prices or [own] if price is not None]
        return max(found) if len(found) == len(prices or [own]) else None

    def completed(self, run: str, sizes: CheckSizes, clock: Clock) -> LiveProvider:
        """Return the file as the class itself completes it (keys, networks, sizes); may reach the cloud.

        Makes an object, too: ConfigError where that fails, or where it can only read.
        """
        watch = CallWatch(clock, sizes.call_limit_s)
        try:
            text = "bootstrap_config(...)"
            found = usable_class(self.config.provider.settings())
            config = watch.limited(text, lambda: filled_in(self.config, found))
            settings = config.provider.settings()
            made = watch.limited("the constructor", lambda: make_external(settings, run))
            if watch.limited("is_readonly()", V1Calls(made, run).read_only):
                raise ConfigError(f"{self.class_name} is read-only: it makes no machines", path=_MODULE)
        except PromiseBroken as late:
            raise ConfigError(late.did, path=_MODULE) from None
        finally:
            watch.close()
        return LiveProvider(config, self.node_type, self.class_name)

    def subjects(
        self, run: str, sizes: CheckSizes, refusals: RefusalFile, clock: Clock
    ) -> Callable[[], ProviderSubject]:
        """Return what makes a subject per line; all their clusters have their own names."""
        launch = node_launches(self.config)[self.node_type]
        machine = MachineOrder(self.node_type, launch.node_config, launch.resources, launch.labels)
        settings, numbers = self.config.provider.settings(), iter(range(1, MOST_CLUSTERS + 1))

        def refused(kind: FailureKind, cluster_name: str) -> RefusedOrder | None:
            case = refusals.case(kind)
            if case is None:
                return None
            made = make_external({**settings, **case.provider}, cluster_name)
            return RefusedOrder(made, {**launch.node_config, **case.node_config})

        return lambda: ProviderSubject(
            lambda name: make_external(settings, name),
            lambda: f"{run}-{next(numbers)}",
            machine=machine,
            sizes=sizes,
            make_refused=refused,
            clock=clock,
        )


def live_provider(config: ClusterConfig, module: str | None, node_type: str | None) -> LiveProvider:
    """Return what is to be checked; ConfigError for a class or a type that is not there. Makes no call."""
    named = module or config.provider.module or _OWN_CLASSES.get(config.provider.type)
    if named is None:
        raise ConfigError(
            "names no class",
            path="provider",
            fix="give MODULE.CLASS on the command line, or write module: there",
        )
    settings = {**config.provider.settings(), "type": "external", "module": named, **_NOTHING_KEPT}
    usable_class(settings)
    provider = replace(config.provider, type="external", module=named, written=settings)
    chosen = _chosen_type(config, node_type)
    return LiveProvider(replace(config, provider=provider), chosen, named)


def _chosen_type(config: ClusterConfig, node_type: str | None) -> str:
    types: Mapping[str, object] = config.available_node_types
    if node_type is None:
        return next((name for name in types if name != config.head_type), config.head_type)
    if node_type not in types:
        raise ConfigError(
            f"has no type {describe(node_type)}",
            path="available_node_types",
            fix=f"{nearest(node_type, types)}",
        )
    return node_type


def run_name(ids: IdSource) -> str:
    """Return the name of a new run; its clusters are called after it."""
    return ids.fresh(RUN_PREFIX)


def clusters_of(name: str) -> list[str]:
    """Return the clusters of a run, or the one cluster named; ConfigError for clusters of others."""
    if _CLUSTER.fullmatch(name):
        return [name]
    if _RUN.fullmatch(name):
        return [f"{name}-{number}" for number in range(1, MOST_CLUSTERS + 1)]
    raise ConfigError(
        f"{describe(name)} is not a run of `muster provider check`",
        fix=f"its report names the run, like {RUN_PREFIX}-0a1b2c3d4e5f (for your own cluster: muster down)",
    )
