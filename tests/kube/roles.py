"""The Roles that KubeRay's operator makes for its sidecar, and who may do what by them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Rule:
    """A Rule of a Role, as in its manifest."""

    groups: tuple[str, ...]
    resources: tuple[str, ...]
    verbs: tuple[str, ...]
    names: tuple[str, ...] = ()  # of the objects that it is about; none: all

    def manifest(self) -> dict[str, list[str]]:
        names = {"resourceNames": list(self.names)} if self.names else {}
        return {
            "apiGroups": list(self.groups),
            "resources": list(self.resources),
            "verbs": list(self.verbs),
            **names,
        }


Role = tuple[Rule, ...]

# What the operator grants the sidecar (createRole): since 1.5 pods may be patched and resized.
KUBERAY_1_3: Role = (
    Rule(("",), ("pods",), ("get", "list", "watch")),
    Rule(("ray.io",), ("rayclusters",), ("get", "patch")),
)
KUBERAY_1_7: Role = (
    Rule(("",), ("pods",), ("get", "list", "watch", "patch")),
    Rule(("",), ("pods/resize",), ("patch",)),
    Rule(("ray.io",), ("rayclusters",), ("get", "patch")),
)
# What deploy/kuberay/role.yaml adds where an administrator wants it.
EXTRA: Role = (
    Rule(("ray.io",), ("rayclusters",), ("watch", "delete"), names=("demo",)),
    Rule(("ray.io",), ("rayclusters/status",), ("patch",), names=("demo",)),
    Rule(("",), ("events",), ("create",)),
)
NOBODY: Role = ()
ROLES = {
    "kuberay-1.3": KUBERAY_1_3,
    "kuberay-1.7": KUBERAY_1_7,
    "with-extra-role": KUBERAY_1_7 + EXTRA,
    "nobody": NOBODY,
}


def allows(role: Sequence[Rule] | None, group: str, resource: str, verb: str, name: str = "") -> bool:
    """None is the administrator, who may do everything. `name` is that of the object, "" for all of them."""
    if role is None:
        return True
    return any(
        group in r.groups and resource in r.resources and verb in r.verbs and (not r.names or name in r.names)
        for r in role
    )
