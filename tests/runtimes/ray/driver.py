"""A Ray driver in a separate process that does what it is told, line by line; run by `RayDriver`."""

from __future__ import annotations

import json
import subprocess
import sys
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any


class RayDriver:
    """`run(code)` executes statements there; a last line `answer = ...` comes back as JSON."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=dict(environment),
        )

    def run(self, code: str) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(code) + "\n")
        self._process.stdin.flush()
        for line in self._process.stdout:
            if line.startswith("answer "):
                answer = json.loads(line[len("answer ") :])
                assert "error" not in answer, answer["error"]
                return answer["value"]
        raise AssertionError(f"the driver ended with {self._process.wait()}")

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            stream.close()


def obey() -> None:
    import ray

    ray.init(log_to_driver=False, logging_level="ERROR")
    names: dict[str, Any] = {"ray": ray}
    for line in sys.stdin:
        names.pop("answer", None)
        try:
            exec(json.loads(line), names)
            said = {"value": names.get("answer")}
        except Exception:
            said = {"error": traceback.format_exc()}
        sys.stdout.write(f"answer {json.dumps(said)}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    obey()
