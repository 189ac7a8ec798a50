"""Run in another process, beside Ray on a worker: reads what the cloud announces about this machine.

Standard library only, one file: `remote.notices` sends its text to machines without muster. A notice goes to
the key-value store of the cluster's head, with the Ray that is installed here; the monitor reads it there.
It decides nothing, and drains nothing.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import shutil
import socket
import struct
import subprocess
import sys
import syslog
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from datetime import datetime, timezone
from email.utils import parsedate_to_datetime

MARK = "RAY_CLOUD_INSTANCE_ID"  # the machine's name in the cluster
SPACE, PREFIX = "__muster", "notice/"  # where the monitor looks
ADDRESS = "http://169.254.169.254"  # of the metadata service, in all three clouds
ADDRESS_VARIABLE = "MUSTER_NOTICES_ADDRESS"  # another one; {id} in it is the machine's name
PAUSE_S = 5.0
LONGEST_PAUSE_S = 60.0  # while the service does not answer
CALL_S = 5.0
FIRST_CALL_S = 150.0  # Azure starts its service for a machine with the first call
REPORT_S = 60.0
REPEAT_S = 60.0  # the head may be a new one, which does not know the notice
GCP_LEAD_S = 30.0  # from the notice to the end; it names no time
GCP_WAIT_S = 5
TOKEN_S = 21_600
INTERRUPTION, MAINTENANCE, REBALANCE = "interruption", "maintenance", "rebalance"
AZURE_KINDS = {
    "Preempt": INTERRUPTION,
    "Terminate": INTERRUPTION,
    "Reboot": MAINTENANCE,
    "Redeploy": MAINTENANCE,
}
REPORT = f"""\
import sys
from ray._raylet import GcsClient
put = GcsClient(address=sys.argv[1]).internal_kv_put
put(sys.argv[2].encode(), sys.stdin.buffer.read(), True, {SPACE.encode()!r}, timeout=20)
"""


def now() -> float:
    return time.time()  # noqa: TID251 - no muster here to take a clock from


class NotThere(Exception):
    """The service answered, and has nothing at this path."""


class Metadata:
    """The service of the machine's cloud. A proxy of the environment is not for it."""

    def __init__(self, address: str) -> None:
        self._address = address.rstrip("/")
        self._open = urllib.request.build_opener(urllib.request.ProxyHandler({})).open
        self._token, self._token_until = "", 0.0
        self.etag = ""  # of the newest answer

    def get(self, path: str, headers: dict[str, str], timeout_s: float = CALL_S) -> str:
        """Return the text; raise NotThere, or OSError when the service cannot be used."""
        request = urllib.request.Request(f"{self._address}{path}", headers=headers)
        try:
            with self._open(request, timeout=timeout_s) as answer:
                self.etag = answer.headers.get("ETag") or ""
                return str(answer.read().decode(errors="replace"))
        except urllib.error.HTTPError as error:
            error.close()
            if error.code == 404:
                raise NotThere(path) from None
            raise

    def get_aws(self, path: str) -> str:
        """Return the text; a token that was refused is renewed once."""
        for is_last in (False, True):
            if now() > self._token_until:
                self._renew()
            try:
                return self.get(path, {"X-aws-ec2-metadata-token": self._token})
            except urllib.error.HTTPError as error:
                self._token_until = 0.0
                if error.code != 401 or is_last:
                    raise
        raise AssertionError("not reached")

    def _renew(self) -> None:
        request = urllib.request.Request(
            f"{self._address}/latest/api/token",
            method="PUT",
            headers={"X-aws-ec2-metadata-token-ttl-seconds": str(TOKEN_S)},
        )
        with self._open(request, timeout=CALL_S) as answer:
            self._token = answer.read().decode()
        self._token_until = now() + TOKEN_S / 2


Found = list[dict[str, object]]


def gathered(*looks: Callable[[], Found]) -> Found:
    """Return what all of them found. One that fails hides nothing but the others' certain ends.

    Without such an end the failure is raised: what could not be read was not taken back.
    """
    found: Found = []
    failure: Exception | None = None
    for look in looks:
        try:
            found += look()
        except NotThere:
            pass
        except Exception as error:  # noqa: BLE001 - raised below, unless the machine ends in any case
            failure = error
    if failure is not None and all(notice["kind"] != INTERRUPTION for notice in found):
        raise failure
    return found


class Aws:
    """Reads spot interruptions, rebalance recommendations and maintenance of EC2."""

    def __init__(self, service: Metadata) -> None:
        self._service = service

    def read(self) -> Found:
        return gathered(self._spot, self._rebalance, self._maintenance)

    def _spot(self) -> Found:
        action = json.loads(self._service.get_aws("/latest/meta-data/spot/instance-action"))
        return [made(INTERRUPTION, moment(action["time"]), f"aws: spot {action['action']}")]

    def _rebalance(self) -> Found:
        self._service.get_aws("/latest/meta-data/events/recommendations/rebalance")
        return [made(REBALANCE, None, "aws: rebalance recommendation")]

    def _maintenance(self) -> Found:
        events = json.loads(self._service.get_aws("/latest/meta-data/events/maintenance/scheduled"))
        return [
            made(MAINTENANCE, moment(event["NotBefore"]), f"aws: {event.get('Code', 'maintenance')}")
            for event in events
            if event.get("State", "active") == "active"
        ]


class Gcp:
    """Reads preemption and host maintenance of Compute Engine; waiting is part of the call."""

    def __init__(self, service: Metadata) -> None:
        self._service = service
        self._began = Began()
        self._etag = ""

    def read(self) -> Found:
        return gathered(self._preempted, self._maintenance)

    def _preempted(self) -> Found:
        wait = f"?wait_for_change=true&timeout_sec={GCP_WAIT_S}&last_etag={self._etag}" if self._etag else ""
        is_true = self._get(f"instance/preempted{wait}", GCP_WAIT_S + CALL_S) == "TRUE"
        self._etag = "" if is_true else self._service.etag
        since = self._began.of("preempted", is_true)
        return [] if since is None else [made(INTERRUPTION, since + GCP_LEAD_S, "gcp: preempted")]

    def _maintenance(self) -> Found:
        event = self._get("instance/maintenance-event", CALL_S)
        since = self._began.of("maintenance", event == "TERMINATE_ON_HOST_MAINTENANCE")
        return [] if since is None else [made(MAINTENANCE, since + LONGEST_PAUSE_S, "gcp: host maintenance")]

    def _get(self, path: str, timeout_s: float) -> str:
        headers = {"Metadata-Flavor": "Google"}
        return self._service.get(f"/computeMetadata/v1/{path}", headers, timeout_s).strip()


class Azure:
    """Reads scheduled events; those of other machines of the same group are on the list too."""

    def __init__(self, service: Metadata) -> None:
        self._service = service
        self._began = Began()
        self._name = ""
        self._call_s = FIRST_CALL_S

    def read(self) -> Found:
        events = json.loads(self._get("scheduledevents?api-version=2020-07-01")).get("Events", [])
        self._call_s = CALL_S
        return [
            made(kind, self._deadline(event), f"azure: {event['EventType']}")
            for event in events
            if (kind := AZURE_KINDS.get(event.get("EventType", ""))) and self._is_mine(event)
        ]

    def _get(self, path: str) -> str:
        return self._service.get(f"/metadata/{path}", {"Metadata": "true"}, self._call_s)

    def _deadline(self, event: dict[str, str]) -> float:
        """What has begun has no time any more: it is now."""
        at = event.get("NotBefore")
        return moment(at) if at else self._began.of(event.get("EventId", ""), True) or now()

    def _is_mine(self, event: dict[str, object]) -> bool:
        if event.get("EventStatus") == "Completed":
            return False
        if not self._name:
            self._name = self._get("instance/compute/name?api-version=2021-02-01&format=text").strip()
        names = event.get("Resources")
        return isinstance(names, list) and self._name in names


class Began:
    """Remembers when each of several things was first true: the services name no time for them."""

    def __init__(self) -> None:
        self._at: dict[str, float] = {}

    def of(self, name: str, is_true: bool) -> float | None:
        if not is_true:
            self._at.pop(name, None)
            return None
        return self._at.setdefault(name, now())


CLOUDS: dict[str, Callable[[Metadata], Aws | Gcp | Azure]] = {"aws": Aws, "gcp": Gcp, "azure": Azure}


def made(kind: str, deadline: float | None, source: str) -> dict[str, object]:
    return {"kind": kind, "deadline": deadline, "source": source}


def moment(text: str) -> float:
    """Return a time of the services as seconds since the epoch; ValueError for anything else."""
    try:
        found = datetime.fromisoformat(text.replace("Z", "+00:00"))
    except ValueError:
        found = parsedate_to_datetime(text)
    zoned = found if found.tzinfo is not None else found.replace(tzinfo=timezone.utc)
    return zoned.timestamp()


def most_urgent(found: Found) -> dict[str, object] | None:
    """Return the notice that counts: an end that is certain, then whatever comes first."""
    soon = now() + 600.0  # about when a recommendation comes true, if it does

    def rank(notice: dict[str, object]) -> tuple[bool, float]:
        deadline = notice["deadline"]
        return notice["kind"] != INTERRUPTION, deadline if isinstance(deadline, float) else soon

    return min(found, key=rank, default=None)


def same(one: dict[str, object] | None, two: dict[str, object] | None) -> bool:
    """Return whether two notices announce the same; a time is read again a little differently."""
    if one is None or two is None or one["kind"] != two["kind"]:
        return one is two
    first, second = one["deadline"], two["deadline"]
    if not isinstance(first, float) or not isinstance(second, float):
        return first is second
    return abs(first - second) < 1.0


def ray_python(command: str) -> str:
    """Return the Python of the Ray that was started here: the one beside the command."""
    ray = shutil.which(os.path.expanduser(command))
    beside = os.path.join(os.path.dirname(os.path.realpath(ray)), "python3") if ray else ""
    return beside if os.path.exists(beside) else sys.executable


class NoticeWatch:
    """Follows the notices of one machine."""

    def __init__(self, given: argparse.Namespace) -> None:
        self._given = given
        self._cloud = CLOUDS[given.cloud](Metadata((given.address or ADDRESS).replace("{id}", given.id)))
        self._reported: dict[str, object] | None = None
        self._reported_at = 0.0
        self._last_line = ""

    def run(self) -> int:
        """Watch until it is ended, by the machine's end or by a newer watcher."""
        take_over(self._given.id)
        usual_s = pause_s = (
            min(self._given.pause_s, 1.0) if self._given.cloud == "gcp" else self._given.pause_s
        )
        while True:
            try:
                self.look()
                pause_s = usual_s
                self._log_line("")
            except Exception as error:  # noqa: BLE001 - whatever it is, the next look may be better
                pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
                self._log_line(f"{type(error).__name__}: {error}")
            time.sleep(pause_s)  # noqa: TID251

    def look(self) -> None:
        """Read once, and report what is new, or was reported a while ago; raises what went wrong."""
        found = most_urgent(self._cloud.read())
        is_old = time.monotonic() - self._reported_at > REPEAT_S  # noqa: TID251
        if found is not None and (is_old or not same(found, self._reported)):
            self._report({**found, "is_cancelled": False})
            self._reported, self._reported_at = found, time.monotonic()  # noqa: TID251
        elif found is None and self._reported is not None:
            self._report({**self._reported, "is_cancelled": True})
            self._reported = None

    def _report(self, notice: dict[str, object]) -> None:
        value = json.dumps({"cloud_id": self._given.id, "at": now(), **notice})
        command = [ray_python(self._given.ray), "-c", REPORT]
        command += [self._given.head, f"{PREFIX}{self._given.id}"]
        done = subprocess.run(
            command, input=value.encode(), capture_output=True, timeout=REPORT_S, check=False
        )
        if done.returncode != 0:
            last = done.stderr.decode(errors="replace").strip().splitlines()[-1:]
            raise OSError(f"the head at {self._given.head} was not told: {' '.join(last)}")
        self._log_line(f"reported to {self._given.head}: {value}")

    def _log_line(self, line: str) -> None:
        if line and line != self._last_line:
            sys.stderr.write(f"notices: {line}\n")
            sys.stderr.flush()
            syslog.syslog(f"muster: notices: {line}")
        self._last_line = line or self._last_line


def take_over(machine: str) -> None:
    """End an earlier watcher of this machine, and ends this process when a later one comes."""
    name = f"\0muster-notices-{hashlib.sha256(machine.encode()).hexdigest()[:32]}"
    listener = socket.socket(socket.AF_UNIX)
    give_up = time.monotonic() + 10.0  # noqa: TID251
    while True:
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as earlier:
            earlier.connect(name)
        try:
            listener.bind(name)
            break
        except OSError:
            if time.monotonic() > give_up:  # noqa: TID251
                raise SystemExit("notices: an earlier watcher of another user is here: it stays") from None
            time.sleep(0.1)  # noqa: TID251
    listener.listen()
    threading.Thread(target=_end_when_replaced, args=(listener,), daemon=True).start()


def _end_when_replaced(listener: socket.socket) -> None:
    while True:
        later, _ = listener.accept()
        _, user, _ = struct.unpack("3i", later.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        later.close()
        if user in (os.getuid(), 0):
            os._exit(0)


def parser() -> argparse.ArgumentParser:
    shown = argparse.ArgumentParser(prog="node_notices", description=__doc__)
    shown.add_argument("--cloud", choices=sorted(CLOUDS), required=True)
    shown.add_argument("--head", required=True, metavar="HOST:PORT", help="of the GCS")
    address = os.environ.get(ADDRESS_VARIABLE, "")  # noqa: TID251
    shown.add_argument("--address", default=address, help=f"default: {ADDRESS_VARIABLE}, or {ADDRESS}")
    shown.add_argument("--id", default=os.environ.get(MARK, ""), help=f"default: {MARK}")  # noqa: TID251
    shown.add_argument("--ray", default="ray", help="the command that starts Ray: its Python tells the head")
    shown.add_argument("--pause-s", type=float, default=PAUSE_S)
    return shown


if __name__ == "__main__":
    sys.exit(NoticeWatch(parser().parse_args()).run())
