"""The HTTP server that Prometheus asks; on the wished port, or on any free one with a warning."""

from __future__ import annotations

import logging
from typing import Any

from muster.autoscaler.metrics import Metrics

logger = logging.getLogger(__name__)

DEFAULT_PORT = 44217  # Ray's
_LOOPBACK = ("127.", "localhost", "::1", "[::1]")


class MetricsServer:
    """Serves one registry until `close`."""

    def __init__(self, metrics: Metrics, host: str, port: int) -> None:
        """`port` 0 takes any free one."""
        from prometheus_client import start_http_server

        self._metrics, self._host = metrics, host
        try:
            self._server, self._thread = start_http_server(port, host, metrics.registry)
        except OSError as error:
            if port == 0:
                raise
            self._server, self._thread = start_http_server(0, host, metrics.registry)
            taken: Any = error.strerror or error
            logger.warning(
                "metrics: port %d cannot be used (%s); they are on port %d instead. Choose one with "
                "--metrics-port or AUTOSCALER_METRIC_PORT",
                port,
                str(taken).lower(),
                self.port,
            )

    @property
    def port(self) -> int:
        return int(self._server.server_port)

    def move(self, port: int) -> None:
        """Serve on another port from now on. OSError: it cannot be used, and nothing has changed."""
        from prometheus_client import start_http_server

        if port in (0, self.port):  # 0 is any, so this one as well
            return
        fresh = start_http_server(port, self._host, self._metrics.registry)
        self.close()
        self._server, self._thread = fresh

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def host_for(address: str) -> str:
    """Where to listen: a cluster that lives on loopback is nobody else's business."""
    return "127.0.0.1" if address.startswith(_LOOPBACK) else "0.0.0.0"
