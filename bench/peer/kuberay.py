"""Run in another process: Ray's KubeRay provider over the same API server. Prints the CPU of a listing.

Its HTTP client is replaced by one that does the same with the same library, because Ray's own only speaks to
the address and with the files of a pod.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any


class ApiClient:
    """Gets and patches with a token, as Ray's client does."""

    def __init__(self, url: str, token: str) -> None:
        self._url, self._headers = url, {"Authorization": f"Bearer {token}"}

    def get(self, path: str) -> dict[str, Any]:
        return self._ask("GET", path)

    def patch(self, path: str, payload: Any, content_type: str = "application/json-patch+json") -> Any:
        return self._ask("PATCH", path, data=json.dumps(payload), headers={"Content-type": content_type})

    def delete(self, path: str) -> Any:
        return self._ask("DELETE", path)

    def _ask(self, method: str, path: str, headers: dict[str, str] | None = None, **more: Any) -> Any:
        import requests

        group = "api/v1" if path.startswith("pods") else "apis/ray.io/v1"
        url = f"{self._url}/{group}/namespaces/research/{path}"
        answer = requests.request(
            method, url, headers={**self._headers, **(headers or {})}, timeout=60, **more
        )
        answer.raise_for_status()
        return answer.json()


def main(url: str, token: str, times: int) -> None:
    from ray.autoscaler.v2.instance_manager.cloud_providers.kuberay.cloud_provider import KubeRayProvider

    provider = KubeRayProvider("demo", {"namespace": "research"}, None, ApiClient(url, token))
    assert len(provider.get_non_terminated()) > 0
    print("listing", flush=True)
    before = time.process_time()
    for _ in range(times):
        provider.get_non_terminated()
    print(json.dumps({"listing_s": (time.process_time() - before) / times}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
