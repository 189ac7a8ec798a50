"""Write the tables of docs/variables.md from the code: `python tools/variables.py`."""

from __future__ import annotations

import re
from pathlib import Path

from muster.config.environment import VARIABLES as CLUSTER_VARIABLES
from muster.tune.constants import VARIABLES

PAGE = Path(__file__).resolve().parent.parent / "docs" / "variables.md"
# Of the sidecar on Kubernetes, beside those for Ray's tokens.
SIDECAR = {
    "RAY_CLUSTER_NAME": "The name of the RayCluster; KubeRay sets it.",
    "RAY_CLUSTER_NAMESPACE": "Its namespace; KubeRay sets it.",
    "RAY_KUBERAY_CA_CERT_PATH": "The certificate authority of the API server.",
    "RAY_KUBERAY_CLIENT_CERT_PATH": "A client certificate, instead of a token.",
    "RAY_KUBERAY_CLIENT_KEY_PATH": "The key of the client certificate.",
    "KUBERAY_CRD_VER": "The version of the RayCluster API, by default v1.",
    "KUBERAY_REQUEST_TIMEOUT_S": "Seconds that a request to the API server may take.",
    "KUBECONFIG": "The kubeconfig, outside a pod.",
}


def _table(header: str, rows: list[str]) -> str:
    return "\n".join([header, "|" + "---|" * (header.count("|") - 1), *rows])


def tables() -> dict[str, str]:
    """Return each table by the name that its place on the page has."""
    tuner = [f"| `{name}` | {default} | {effect} |" for name, (default, effect) in VARIABLES.items()]
    cluster = [f"| `{each.name}` | `muster.{'.'.join(each.path)}` |" for each in CLUSTER_VARIABLES]
    return {
        "variables": _table("| variable | default | effect |", tuner),
        "cluster": _table("| variable | key in the cluster file |", cluster),
        "sidecar": _table(
            "| variable | effect |", [f"| `{name}` | {text} |" for name, text in SIDECAR.items()]
        ),
    }


def written() -> str:
    """Return the page with the tables as the code has them."""
    text = PAGE.read_text(encoding="utf-8")
    for name, table in tables().items():
        text = re.sub(
            rf"(?s)(<!-- {name}: written by \S+ -->\n).*(<!-- {name}: end -->)",
            lambda found, table=table: f"{found[1]}{table}\n{found[2]}",  # type: ignore[misc]
            text,
        )
    return text


if __name__ == "__main__":
    PAGE.write_text(written(), encoding="utf-8")
