"""Play Kueue for the tests: its writer of scale gates is not merged yet (kueue#14656)."""

from __future__ import annotations

from tests.kube.operator import AdminClient, Object

GATE = "kueue.k8s.io/quota-exceeded"


def gates_of(group: Object) -> list[str]:
    return [gate["name"] for gate in (group.get("scaleStrategy") or {}).get("scaleGate") or []]


def set_gates(admin: AdminClient, index: int, names: list[str]) -> None:
    """Write the gates of a group and nothing else of its strategy, as server-side apply does."""
    group = admin.cluster()["spec"]["workerGroupSpecs"][index]
    strategy = {key: value for key, value in (group.get("scaleStrategy") or {}).items() if key != "scaleGate"}
    gates = {"scaleGate": [{"name": name} for name in names]} if names else {}
    admin.edit_group(index, scaleStrategy={**strategy, **gates})


class KueueDouble:
    """Gates a group that asks for more than its quota, lowers its replicas, and admits it later."""

    def __init__(self, admin: AdminClient, quota: dict[str, int]) -> None:
        self.admin, self.quota = admin, quota  # in replicas

    def step(self) -> None:
        for index, group in enumerate(self.admin.cluster()["spec"]["workerGroupSpecs"]):
            quota, gates = self.quota.get(group["groupName"]), gates_of(group)
            if quota is None:
                continue
            if group["replicas"] > quota:
                self.admin.edit_group(index, replicas=quota)
                set_gates(self.admin, index, [*gates, *([] if GATE in gates else [GATE])])
            elif GATE in gates and group["replicas"] < quota:
                set_gates(self.admin, index, [name for name in gates if name != GATE])
