"""A KubeWorld without sockets and threads, for series of many short runs."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import unquote_plus

from tests.kube.api_server import NAMESPACE
from tests.kube.objects import Refused, Store, check_ray_cluster, merged, patched
from tests.kube.operator import AdminClient, Object, OperatorDouble
from tests.kube.world import KubeWorld

from muster.providers.kuberay.client import Answer, KubeClient, KubePaths
from muster.providers.kuberay.credentials import KubeAccess
from muster.providers.kuberay.provider import KubeRayProvider


class DirectApi:
    """Objects behind the methods of HTTP."""

    def __init__(self) -> None:
        self.store = Store()

    def answer(self, method: str, path: str, body: Any, kind: str) -> Object:
        where, _, query = path.partition("?")
        parts = where.split("/namespaces/")[1].split("/")[1:]
        resource, name, sub = (*parts, "", "")[:3]
        with self.store.changed:
            if method == "GET" and not name:
                selector = dict(one.split("=", 1) for one in query.split("&") if one).get("labelSelector", "")
                items = self.store.select(resource, NAMESPACE, unquote_plus(selector))
                return {"metadata": {"resourceVersion": str(self.store.version)}, "items": items}
            if method == "POST":
                return self.store.create(resource, NAMESPACE, body)
            found = self.store.find(resource, NAMESPACE, name)
            if method == "DELETE":
                return self.store.delete(resource, found, 0 if "gracePeriodSeconds=0" in query else None)
            if method == "PATCH":
                after = (patched if "json-patch" in kind else merged)(found, body)
                if sub == "status":
                    after = {**found, "status": after.get("status")}
                elif resource == "rayclusters":
                    check_ray_cluster(after)
                return self.store.replace(resource, found, after)
            return found


class DirectAdmin(AdminClient):
    """The administrator of a DirectApi."""

    def __init__(self, api: DirectApi) -> None:
        super().__init__("", "")
        self._api = api

    def ask(self, method: str, path: str, body: Any = None, kind: str = "application/json") -> Any:
        try:
            return json.loads(json.dumps(self._api.answer(method, path, body, kind)))
        except Refused:
            if method == "DELETE":
                return {}
            raise


class DirectClient(KubeClient):
    """muster's client over a DirectApi."""

    def __init__(self, api: DirectApi) -> None:
        super().__init__(KubeAccess(url="http://direct", token="t"))
        self._api = api

    def request(self, method, path, data, headers, idle_s=None) -> Answer:  # type: ignore[no-untyped-def]
        try:
            body = json.loads(data) if data else None
            made = self._api.answer(method, path, body, headers.get("Content-Type", ""))
            return Answer(200, content=json.dumps(made).encode())
        except Refused as refused:
            return Answer(refused.code, content=json.dumps(refused.status()).encode())


class DirectWorld(KubeWorld):
    """One RayCluster on a DirectApi; the provider sees a change when it is told to look."""

    def __init__(self) -> None:
        self.name, self.api = "demo", DirectApi()
        self.admin = DirectAdmin(self.api)
        self.operator = OperatorDouble(self.admin, self.name)
        self._closers = []

    def provider(self, role: str = "", token: str = "", *, threads: bool = False) -> KubeRayProvider:
        made = KubeRayProvider(DirectClient(self.api), KubePaths(NAMESPACE, self.name))
        self.caught_up(made)
        self.confirm(made)
        return made

    def caught_up(self, provider: KubeRayProvider) -> None:
        provider._watch.relist()
