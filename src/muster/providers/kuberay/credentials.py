"""Find the API server and how to log in to it: inside a pod, or by a kubeconfig; both are read again.

Tokens of service accounts are rotated, and certificates are renewed, while the monitor runs. No token is ever
part of a message, a log line or the arguments of a process.
"""

from __future__ import annotations

import base64
import json
import os
import ssl
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from muster.base.clock import Clock, SystemClock
from muster.errors import ProviderDenied, ProviderMisconfigured

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
REREAD_S = 60.0
EXEC_S = 60.0

Plain = Mapping[str, Any]


@dataclass
class KubeAccess:
    """The address of an API server and how to show who we are."""

    url: str
    token: str = field(default="", repr=False)
    token_file: Path | None = None
    ca_file: Path | None = None
    ca_data: str = field(default="", repr=False)
    cert_file: Path | None = None
    key_file: Path | None = None
    cert_data: tuple[str, str] | None = field(default=None, repr=False)  # certificate and key, as PEM
    verify: bool = True
    plugin: ExecPlugin | None = None
    clock: Clock = field(default_factory=SystemClock, repr=False)

    def __post_init__(self) -> None:
        self._read_at = float("-inf")
        self._current = self.token

    def headers(self, *, fresh: bool = False) -> dict[str, str]:
        """Return the header that logs in; `fresh` after a refusal: the token may have been rotated."""
        if self.plugin is not None:
            self._current = self.plugin.token(fresh=fresh)
        elif self.token_file is not None:
            self._reread(fresh)
        return {"Authorization": f"Bearer {self._current}"} if self._current else {}

    def _reread(self, fresh: bool) -> None:
        now = self.clock.monotonic()
        if not fresh and now - self._read_at < REREAD_S:
            return
        assert self.token_file is not None
        try:
            self._current = self.token_file.read_text(encoding="ascii").strip()
        except (OSError, UnicodeDecodeError) as error:
            if not self._current:
                why = getattr(error, "strerror", None) or "it is not text"
                raise ProviderDenied(
                    f"the token of the service account cannot be read from {self.token_file} ({why}):"
                    " mount it, or set automountServiceAccountToken: true"
                ) from None
        self._read_at = now

    def ssl_context(self) -> ssl.SSLContext | None:
        """Return what a new connection uses; None without TLS. Files may be renewed, so they are read."""
        if not self.url.startswith("https://"):
            return None
        try:
            context = ssl.create_default_context(
                cafile=None if self.ca_file is None else str(self.ca_file), cadata=self.ca_data or None
            )
            context.verify_flags &= ~ssl.VERIFY_X509_STRICT  # new in Python 3.13; clusters' CAs fail it
            if not self.verify:
                context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            self._load_certificate(context)
        except (OSError, ssl.SSLError) as error:
            files = [str(one) for one in (self.ca_file, self.cert_file, self.key_file) if one is not None]
            raise ProviderMisconfigured(
                f"the certificates for {self.url} cannot be used ({', '.join(files) or 'of the kubeconfig'}:"
                f" {error}): check the files"
            ) from None
        return context

    def _load_certificate(self, context: ssl.SSLContext) -> None:
        if self.cert_file is not None:
            key = None if self.key_file is None else str(self.key_file)
            context.load_cert_chain(str(self.cert_file), key)
        pair = self.cert_data if self.plugin is None else self.plugin.certificate
        if pair:
            _load_pem(context, *pair)


def _load_pem(context: ssl.SSLContext, certificate: str, key: str) -> None:
    """Python's ssl only reads files; this one is ours alone and lives for a moment."""
    descriptor, name = tempfile.mkstemp(prefix="muster-")
    try:
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            file.write(f"{certificate}\n{key}\n")
        context.load_cert_chain(name)
    finally:
        os.unlink(name)


def in_cluster(
    environment: Mapping[str, str], service_account: Path = SERVICE_ACCOUNT, clock: Clock | None = None
) -> KubeAccess:
    """Return the access of a pod: its service account, with the overrides that KubeRay's sidecar knows."""
    token_file = service_account / "token"
    if "KUBERNETES_SERVICE_HOST" not in environment and not token_file.exists():
        raise ProviderMisconfigured(
            "this is not a pod of a Kubernetes cluster (no KUBERNETES_SERVICE_HOST, no service account): run"
            " it as the autoscaler of a RayCluster, or give --kubeconfig"
        )
    host = environment.get("KUBERNETES_SERVICE_HOST") or "kubernetes.default"
    port = environment.get("KUBERNETES_SERVICE_PORT_HTTPS") or environment.get("KUBERNETES_SERVICE_PORT")
    if "://" in host:
        scheme, _, host = host.partition("://")
        if scheme != "https":
            raise ProviderMisconfigured(
                f"KUBERNETES_SERVICE_HOST={scheme}://{host} would send the token in the clear: use https"
            )
    host = f"[{host}]" if ":" in host and not host.startswith("[") else host
    ca = environment.get("RAY_KUBERAY_CA_CERT_PATH")
    cert, key = (environment.get(f"RAY_KUBERAY_CLIENT_{name}_PATH") for name in ("CERT", "KEY"))
    if bool(cert) != bool(key):
        raise ProviderMisconfigured(
            "RAY_KUBERAY_CLIENT_CERT_PATH and RAY_KUBERAY_CLIENT_KEY_PATH belong together: set both, or none"
        )
    return KubeAccess(
        url=f"https://{host}:{port or 443}",
        token_file=token_file if token_file.exists() or not cert else None,
        ca_file=Path(ca) if ca else service_account / "ca.crt",
        cert_file=Path(cert) if cert else None,
        key_file=Path(key) if key else None,
        clock=clock or SystemClock(),
    )


def from_kubeconfig(
    path: Path, environment: Mapping[str, str], context: str = "", clock: Clock | None = None
) -> tuple[KubeAccess, str]:
    """Return the access of a context of a kubeconfig, and its namespace ("" when it names none)."""
    data = _read_yaml(path)
    name = context or data.get("current-context") or ""
    chosen = _named(data, "contexts", "context", name, path)
    cluster = _named(data, "clusters", "cluster", chosen.get("cluster", ""), path)
    user = _named(data, "users", "user", chosen["user"], path) if chosen.get("user") else {}
    if not isinstance(cluster.get("server"), str):
        raise ProviderMisconfigured(
            f"{path}: cluster {chosen.get('cluster')!r} has no server", fix="add its address"
        )
    plugin = ExecPlugin(user["exec"], path.parent, environment, clock) if user.get("exec") else None
    return _access(cluster, user, path.parent, plugin), chosen.get("namespace") or ""


def _access(cluster: Plain, user: Plain, folder: Path, plugin: ExecPlugin | None) -> KubeAccess:
    def file(section: Plain, key: str) -> Path | None:
        return (folder / section[key]).resolve() if section.get(key) else None

    pair = _decoded(user, "client-certificate-data"), _decoded(user, "client-key-data")
    return KubeAccess(
        url=str(cluster["server"]).rstrip("/"),
        token=user.get("token", ""),
        token_file=file(user, "tokenFile"),
        ca_file=file(cluster, "certificate-authority"),
        ca_data=_decoded(cluster, "certificate-authority-data"),
        cert_file=file(user, "client-certificate"),
        key_file=file(user, "client-key"),
        cert_data=pair if pair[0] else None,
        verify=not cluster.get("insecure-skip-tls-verify"),
        plugin=plugin,
    )


def _read_yaml(path: Path) -> Plain:
    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ProviderMisconfigured(
            f"the kubeconfig {path} cannot be read ({error.strerror}): set KUBECONFIG to that of your cluster"
        ) from None
    except (yaml.YAMLError, UnicodeDecodeError):
        raise ProviderMisconfigured(f"{path} is not YAML: give the kubeconfig of your cluster") from None
    if not isinstance(data, Mapping):
        raise ProviderMisconfigured(f"{path} is not a kubeconfig: give the kubeconfig of your cluster")
    return data


def _named(data: Plain, plural: str, singular: str, name: str, path: Path) -> Plain:
    entries = [one for one in data.get(plural) or () if isinstance(one, Mapping)]
    for entry in entries:
        if entry.get("name") == name and isinstance(entry.get(singular), Mapping):
            found: Plain = entry[singular]
            return found
    known = ", ".join(str(entry.get("name")) for entry in entries) or "none"
    raise ProviderMisconfigured(f"{path} has no {singular} {name!r}", fix=f"there are {known}")


def _decoded(section: Plain, key: str) -> str:
    try:
        return base64.b64decode(section.get(key) or "", validate=True).decode("ascii")
    except ValueError:
        raise ProviderMisconfigured(f"{key} of the kubeconfig is not base64 of a certificate") from None


class ExecPlugin:
    """A program of the kubeconfig that prints a token or a certificate, for a while."""

    def __init__(
        self, section: Plain, folder: Path, environment: Mapping[str, str], clock: Clock | None = None
    ) -> None:
        self._section, self._folder, self._clock = section, folder, clock or SystemClock()
        added = section.get("env") or ()
        self._environment = {**environment, **{str(one["name"]): str(one["value"]) for one in added}}
        self.certificate: tuple[str, str] | None = None
        self._token = ""
        self._asked_at = float("-inf")

    def token(self, *, fresh: bool = False) -> str:
        """Return the token; the program is asked again when its answer is old or was refused."""
        now = self._clock.monotonic()
        if fresh or now - self._asked_at >= 10 * REREAD_S:
            answer = self._ask()
            self._token = str(answer.get("token") or "")
            pair = answer.get("clientCertificateData"), answer.get("clientKeyData")
            self.certificate = (str(pair[0]), str(pair[1])) if pair[0] and pair[1] else None
            self._asked_at = now
        return self._token

    def _ask(self) -> Plain:
        command = [str(self._section.get("command", "")), *map(str, self._section.get("args") or ())]
        try:
            done = subprocess.run(
                command,
                capture_output=True,
                timeout=EXEC_S,
                check=True,
                cwd=self._folder,
                env=self._environment,
            )
            answer = json.loads(done.stdout)["status"]
        except (OSError, subprocess.SubprocessError, ValueError, KeyError, TypeError) as error:
            raise ProviderDenied(
                f"{command[0]!r}, which the kubeconfig names to log in, gave no credentials"
                f" ({type(error).__name__}): run it by hand and fix it"
            ) from None
        return answer if isinstance(answer, Mapping) else {}
