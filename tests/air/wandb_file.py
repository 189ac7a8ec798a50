"""Read the file W&B writes in offline mode: a LevelDB log of protocol buffers behind a header of 7 bytes."""

from __future__ import annotations

import json
import struct
import time

BLOCK = 32768


def offline_runs(directory):
    """Its runs by id. W&B's own process writes the files, a moment after a run is over: so wait."""
    deadline = time.monotonic() + 60
    while True:
        found = _read_runs(directory)
        if found and all(run.exit_code is not None for run in found.values()):
            return found
        assert time.monotonic() < deadline, f"W&B did not finish writing {sorted(found)}"
        time.sleep(0.05)


def _read_runs(directory):
    found = {}
    for file in directory.rglob("run-*.wandb"):
        run = _Run()
        for data in _records(file.read_bytes()):
            run.take(data)
        found[run.id] = run
    return found


class _Run:
    def __init__(self):
        self.id, self.config, self.rows, self.artifacts, self.exit_code = "", {}, [], {}, None

    def take(self, data):
        from wandb.proto.wandb_internal_pb2 import Record

        record = Record()
        record.ParseFromString(data)
        kind = record.WhichOneof("record_type")
        if kind == "run":
            self.id, self.project = record.run.run_id, record.run.project
            self.group, self.name = record.run.run_group, record.run.display_name
            self._configure(record.run.config.update)
        elif kind == "config":
            self._configure(record.config.update)
        elif kind == "history":
            row = {}
            for item in record.history.item:
                row["/".join(item.nested_key) or item.key] = json.loads(item.value_json)
            self.rows.append(row)
        elif kind == "artifact":
            artifact = record.artifact
            self.artifacts[artifact.name] = [entry.path for entry in artifact.manifest.contents]
        elif kind == "exit":
            self.exit_code = record.exit.exit_code

    def _configure(self, items):
        for item in items:
            self.config["/".join(item.nested_key) or item.key] = json.loads(item.value_json)


def _records(data):
    assert data[:4] == b":W&B"
    position, whole = 7, b""
    while position + 7 <= len(data):
        if BLOCK - position % BLOCK < 7:
            position += BLOCK - position % BLOCK
            continue
        _, length, kind = struct.unpack_from("<IHB", data, position)
        whole += data[position + 7 : position + 7 + length]
        position += 7 + length
        if kind in (1, 4):  # complete, or its last part
            yield whole
            whole = b""
