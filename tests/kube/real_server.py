"""The real kube-apiserver with etcd, for the same tests as the in-memory server. It has no controllers.

`make test-k8s` builds it. Version 1.20 has no `pods/resize`. Static tokens are made at the start and given
out one by one, each with a Role of its own.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import ssl
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.kube.api_server import NAMESPACE
from tests.kube.roles import ROLES, Role

from muster.providers.process.ray_command import free_ports

Object = dict[str, Any]
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "muster" / "kube"
START_S = 120.0
TOKENS = 200
MISSING = "no kube-apiserver with etcd: `make test-k8s` builds them, or set KUBE_APISERVER_BIN and ETCD_BIN"


def binaries() -> tuple[str, str] | None:
    """Return kube-apiserver and etcd; None when one of them is not there."""
    server = os.environ.get("KUBE_APISERVER_BIN") or str(CACHE / "kube-apiserver")
    etcd = os.environ.get("ETCD_BIN") or shutil.which("etcd") or ""
    return (server, etcd) if os.access(server, os.X_OK) and os.access(etcd, os.X_OK) else None


class RealKubeApi:
    """The server; `url`, `ca_file`, `token(role)` and `admin_token` are what clients need."""

    has_resize = False

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._processes: list[subprocess.Popen[bytes]] = []
        self._client, self._peer, self._secure = free_ports(3)
        self.url = f"https://127.0.0.1:{self._secure}"
        self.ca_file: str | None = str(directory / "certs" / "apiserver.crt")
        self.admin_token = secrets.token_hex(16)
        self._unused = [(secrets.token_hex(16), f"account-{number}") for number in range(TOKENS)]
        self._accounts: dict[str, str] = {}

    # -- for tests ----------------------------------------------------------------------------

    def token(self, role: str | Role) -> str:
        """Return a token of an account with a Role by its name, or with these rules."""
        token, account = self._unused.pop()
        rules = [rule.manifest() for rule in (ROLES[role] if isinstance(role, str) else role)]
        self._accounts[token] = account
        where = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{NAMESPACE}"
        group = "rbac.authorization.k8s.io"
        self.ask("POST", f"{where}/roles", {"metadata": {"name": account}, "rules": rules})
        binding = {
            "metadata": {"name": account},
            "roleRef": {"apiGroup": group, "kind": "Role", "name": account},
            "subjects": [{"apiGroup": group, "kind": "User", "name": account}],
        }
        self.ask("POST", f"{where}/rolebindings", binding)
        self._wait_for_role(token, rules)
        return token

    def ask(self, method: str, path: str, body: Any = None, token: str = "") -> Any:
        request = urllib.request.Request(self.url + path, method=method)
        request.add_header("Authorization", f"Bearer {token or self.admin_token}")
        request.add_header("Content-Type", "application/json")
        data = None if body is None else json.dumps(body).encode()
        context = ssl.create_default_context(cafile=self.ca_file)
        with urllib.request.urlopen(request, data=data, timeout=30, context=context) as answer:
            return json.loads(answer.read())

    def empty(self) -> None:
        """Delete every pod and RayCluster, so that the next test finds a server without any."""
        for path in (
            f"/apis/ray.io/v1/namespaces/{NAMESPACE}/rayclusters",
            f"/api/v1/namespaces/{NAMESPACE}/pods",
        ):
            for one in self.ask("GET", path)["items"]:
                name = one["metadata"]["name"]
                if one["metadata"].get("finalizers"):
                    self._drop_finalizers(f"{path}/{name}")
                try:
                    self.ask("DELETE", f"{path}/{name}", {"gracePeriodSeconds": 0})
                except urllib.error.HTTPError as error:
                    if error.code != 404:
                        raise

    def _drop_finalizers(self, path: str) -> None:
        request = urllib.request.Request(self.url + path, method="PATCH")
        request.add_header("Authorization", f"Bearer {self.admin_token}")
        request.add_header("Content-Type", "application/merge-patch+json")
        context = ssl.create_default_context(cafile=self.ca_file)
        body = json.dumps({"metadata": {"finalizers": []}}).encode()
        urllib.request.urlopen(request, data=body, timeout=30, context=context).close()

    # -- how ----------------------------------------------------------------------------------

    def start(self, server: str, etcd: str) -> None:
        folder, client = self._directory, f"http://127.0.0.1:{self._client}"
        peer = f"http://127.0.0.1:{self._peer}"
        lines = [f'{self.admin_token},admin,admin,"system:masters"']
        lines += [f"{token},{account},{account}" for token, account in self._unused]
        tokens = folder / "tokens.csv"
        tokens.touch(mode=0o600)
        tokens.write_text("\n".join(lines) + "\n", encoding="utf-8")
        self._run(
            [
                *(etcd, f"--data-dir={folder / 'etcd'}", "--name=test", "--unsafe-no-fsync"),
                *(f"--listen-client-urls={client}", f"--advertise-client-urls={client}"),
                *(f"--listen-peer-urls={peer}", f"--initial-advertise-peer-urls={peer}"),
                f"--initial-cluster=test={peer}",
            ]
        )
        key = folder / "accounts.key"
        subprocess.run(["openssl", "genrsa", "-out", str(key), "2048"], check=True, capture_output=True)
        self._run(
            [
                *(server, f"--etcd-servers={client}", f"--cert-dir={folder / 'certs'}"),
                *(
                    "--bind-address=127.0.0.1",
                    f"--secure-port={self._secure}",
                    "--advertise-address=127.0.0.1",
                ),
                *(f"--token-auth-file={tokens}", "--authorization-mode=RBAC", "--anonymous-auth=false"),
                *("--disable-admission-plugins=ServiceAccount", "--service-cluster-ip-range=10.96.0.0/16"),
                *(f"--service-account-key-file={key}", f"--service-account-signing-key-file={key}"),
                *(
                    "--service-account-issuer=https://kubernetes.default.svc",
                    "--endpoint-reconciler-type=none",
                ),
                "--watch-cache=true",
            ]
        )
        self._wait_until_ready()
        self._install()

    def _run(self, command: list[str]) -> None:
        name = Path(command[0]).name
        with (self._directory / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(
                command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, cwd=self._directory
            )
        self._processes.append(process)

    def _wait_until_ready(self) -> None:
        ends = time.monotonic() + START_S
        while True:
            try:
                context = ssl.create_default_context(cafile=self.ca_file)
                request = urllib.request.Request(f"{self.url}/readyz")
                request.add_header("Authorization", f"Bearer {self.admin_token}")
                urllib.request.urlopen(request, timeout=5, context=context).close()
                return
            except (OSError, ssl.SSLError, urllib.error.URLError):
                log = (self._directory / "kube-apiserver.log").read_text(errors="replace")[-1500:]
                assert all(one.poll() is None for one in self._processes), log
                assert time.monotonic() < ends, log
                time.sleep(0.1)

    def _install(self) -> None:
        self.ask("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", ray_cluster_definition())
        self.ask("POST", "/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
        self._wait_for(f"/apis/ray.io/v1/namespaces/{NAMESPACE}/rayclusters", self.admin_token)

    def _wait_for_role(self, token: str, rules: list[Object]) -> None:
        """The authorizer reads Roles a moment after they are written."""
        for rule in rules:
            if "list" in rule["verbs"] and "pods" in rule["resources"]:
                self._wait_for(f"/api/v1/namespaces/{NAMESPACE}/pods", token)

    def _wait_for(self, path: str, token: str) -> None:
        ends = time.monotonic() + START_S
        while True:
            try:
                self.ask("GET", path, token=token)
                return
            except urllib.error.HTTPError as error:
                assert time.monotonic() < ends, f"{path}: {error}"
                time.sleep(0.05)

    def close(self) -> None:
        for process in reversed(self._processes):
            process.kill()
            process.wait()


def ray_cluster_definition() -> Object:
    """The part of KubeRay's CRD that muster reads and writes; everything else is kept as it is."""
    whole: Object = {"type": "integer", "format": "int32"}
    anything: Object = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    group = {
        "type": "object",
        "required": ["groupName"],
        "x-kubernetes-preserve-unknown-fields": True,
        "properties": {
            "groupName": {"type": "string"},
            "replicas": whole,
            "minReplicas": whole,
            "maxReplicas": whole,
            "numOfHosts": whole,
            "suspend": {"type": "boolean"},
            "scaleStrategy": {
                "type": "object",
                "properties": {"workersToDelete": {"type": "array", "items": {"type": "string"}}},
            },
        },
    }
    spec = {
        "type": "object",
        "x-kubernetes-preserve-unknown-fields": True,
        "properties": {
            "workerGroupSpecs": {"type": "array", "items": group},
            "idleSuspend": {"type": "boolean"},
        },
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "rayclusters.ray.io"},
        "spec": {
            "group": "ray.io",
            "scope": "Namespaced",
            "names": {"plural": "rayclusters", "singular": "raycluster", "kind": "RayCluster"},
            "versions": [
                {
                    "name": "v1",
                    "served": True,
                    "storage": True,
                    "subresources": {"status": {}},
                    "schema": {
                        "openAPIV3Schema": {
                            "type": "object",
                            "properties": {"spec": spec, "status": anything},
                        }
                    },
                }
            ],
        },
    }


@contextmanager
def running_real_api() -> Iterator[RealKubeApi]:
    """One server; raises when the binaries are missing: ask `binaries()` before."""
    found = binaries()
    if found is None:
        raise FileNotFoundError(MISSING)
    directory = Path(tempfile.mkdtemp(prefix="mk-", dir="/tmp"))
    api = RealKubeApi(directory)
    try:
        api.start(*found)
        yield api
    finally:
        api.close()
        shutil.rmtree(directory, ignore_errors=True)
