"""Write the lines of bash that look at a host, take it, tag it and release it; reads what they print.

Pure: the provider runs them. Which cluster has a host is a directory on the host, `muster-host.lock`, with
the file `holder` in it: it survives each launcher and head, and holds the tags that a provider must keep.
Only a directory of the login user, closed to others, is read. One of somebody else says that the host is
taken, and by whom; nothing in it is read. Changes are made under its `flock`: of two clusters one gets it.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from muster.base.text import short_duration
from muster.base.untrusted import describe
from muster.remote.service import REMOVE_SESSION, disable_line, removal_line

LOCK = "muster-host.lock/holder"
NODE_MARK = "MUSTER_NODE"  # of commands that set a node up: a release ends them
STOP_S = 5  # processes have so long to end before they are killed
LEAST_DISK_BYTES = 500_000_000
_BOOT = "@BOOT@"


class LockHolder(Struct, frozen=True, kw_only=True):
    """The contents of a host's lock: which cluster has the host, and what it keeps there."""

    cluster: str
    cloud_id: str
    launcher: str  # user@computer, for whoever wonders
    taken_at: float
    boot: str = _BOOT  # of the host; in another one nothing of the holder can run any more
    is_head: bool = False
    node_type: str = ""
    request_id: str = ""  # of the launch; a restarted monitor recognizes its hosts by it
    launch_hash: str = ""
    tags: Mapping[str, str] = {}  # written later, about how far the node is set up


class HostReport(Struct, frozen=True, kw_only=True):
    """What a host says of itself."""

    now: float = 0.0
    cpus: int = 0
    gpus: int = 0
    memory_bytes: int = 0
    disk_bytes: int = 0  # free where the lock is
    boot: str = ""
    rays: int = 0  # running raylets that do not belong to the lock's holder
    lock: str = ""  # as it is written; "": no cluster of this user has the host
    owner: str = ""  # the user of the host who has made the lock, if that is not the login user
    services: tuple[str, ...] = ()  # clusters whose monitor is kept running here
    is_complete: bool = True  # the whole answer has arrived

    @property
    def holder(self) -> LockHolder | None:
        """Return who has the host; None when nobody does, or a text that no muster has written."""
        try:
            return msgspec.json.decode(self.lock, type=LockHolder) if self.lock else None
        except msgspec.DecodeError:
            return None

    @property
    def is_stale(self) -> bool:
        """Return whether the host was restarted since it was taken: the holder has nothing there."""
        return self.holder is not None and self.holder.boot != self.boot

    def unusable(self, cluster: str) -> str:
        """Return why a cluster cannot have the host now; "" when it can."""
        holder = self.holder
        if self.owner:
            return f"taken by user {describe(self.owner)} of the host, who owns its lock"
        if self.lock and holder is None:
            return f"its lock has contents that muster has not written: {describe(self.lock)}"
        if holder is not None and not self.is_stale:
            who = "this cluster" if holder.cluster == cluster else f"cluster {describe(holder.cluster)}"
            age = short_duration(max(0.0, self.now - holder.taken_at))
            return f"taken by {who} ({describe(holder.launcher)[1:-1]}, {age} ago)"
        if self.rays:
            return f"busy: {self.rays} Ray node{'s' if self.rays > 1 else ''} of somebody else run there"
        if self.disk_bytes < LEAST_DISK_BYTES:
            return f"unhealthy: {self.disk_bytes // 1_000_000} MB are left on its disk"
        return ""


# `ours` lists the processes that were started with this node's name: whatever they are, they are ours.
# `is_mine` enters the lock's directory, if it is a real one, of this user, and closed to all others.
_FUNCTIONS = r"""
marks="RAY_CLOUD_INSTANCE_ID=$ID"
ours() { [ -n "$ID" ] && grep -lzxF -e "$marks" /proc/[0-9]*/environ 2>/dev/null | cut -d/ -f3; }
fail() { echo "$1" >&2; exit 3; }
case "$D" in "~"*) D=$HOME${D#"~"};; esac
L=$D/muster-host.lock
is_there() { [ -e "$L" ] || [ -L "$L" ]; }
is_mine() {
  [ -d "$L" ] && [ ! -L "$L" ] && cd -P "$L" 2>/dev/null && [ -O . ] || return 1
  case "$(stat -c %a .)" in *700) ;; *) return 1;; esac
}
read_holder() { held=; [ -f holder ] && [ ! -L holder ] && [ -O holder ] && read -r held < holder; }
is_held_by_us() { is_mine && read_holder && case $held in *"\"cloud_id\":\"$ID\""*) ;; *) return 1;; esac; }
exclusive() {
  while is_mine; do
    exec 9<. && flock -w 20 9 ||
      fail "the lock of the host is unavailable: flock is missing, or another process holds it"
    [ . -ef "$L" ] && return  # it was removed while this process waited
  done
  return 1
}
write_holder() {
  new=$(mktemp ./new.XXXXXXXX) && printf '%s\n' "${HOLDER/@BOOT@/$B}" > "$new" &&
    mv -f "$new" holder && return
  rm -f "$new"; [ -e holder ] || remove_lock; fail "$L/holder cannot be written"
}
remove_lock() { rm -f holder new.*; cd / && rmdir "$L" 2>/dev/null; }
"""

_LOOK = r"""
set -- /dev/nvidia[0-9]*; [ -e "$1" ] || shift
echo "gpus=$#"
echo "now=$(date +%s.%N)"
echo "cpus=$(getconf _NPROCESSORS_ONLN)"
while read -r name size _; do [ "$name" = MemTotal: ] && echo "memory_kb=$size" && break; done < /proc/meminfo
[ -d "$D" ] || mkdir -p "$D" || fail "the directory $D of the host's lock cannot be made"
df -Pk "$D" | { read -r _; read -r _ _ _ free _; echo "disk_kb=$free"; }
read -r boot < /proc/sys/kernel/random/boot_id; echo "boot=$boot"
held=; owner=
if is_mine; then
  read_holder
  [ -e holder ] || { exec 9<. && flock -n 9 && remove_lock; }  # left by a take that was killed
elif is_there; then owner=$(stat -c %U "$L" 2>/dev/null); fi
mine=
case "$held" in *'"cloud_id":"'*)
  ID=${held#*'"cloud_id":"'}; ID=${ID%%'"'*}; marks="RAY_CLOUD_INSTANCE_ID=$ID"
  mine=" $(ours | tr '\n' ' ') ";;
esac
rays=0
for p in $(grep -lx raylet /proc/[0-9]*/comm 2>/dev/null | cut -d/ -f3); do
  case "$mine" in *" $p "*) ;; *) rays=$((rays+1));; esac
done
echo "rays=$rays"
echo "services=$(cat /proc/[0-9]*/environ 2>/dev/null | tr '\0' '\n' |
  sed -n 's/^MUSTER_SERVICE=//p' | sort -u | tr '\n' ' ')"
echo "owner=$owner"
echo "lock=$held"
"""

# mkdir is the moment at which a host is taken from other users: it makes the directory, or it fails.
_TAKE = r"""
B=$(cat /proc/sys/kernel/random/boot_id)
[ -d "$D" ] || mkdir -p "$D" || fail "the directory $D of the host's lock cannot be made"
for _ in 1 2 3; do is_there || mkdir -m 700 "$L"; exclusive && break; is_there && break; done
is_there || fail "$L cannot be made"
if ! is_mine; then
  owner=$(stat -c %U "$L")
  [ -z "$ID" ] || fail "the host is taken by a lock of user $owner"
  echo "foreign=$owner"; exit 0
fi
read_holder
if [ -n "$held" ]; then  # a lock of an earlier start is stale; one without a start is not muster's
  case "$held" in *"\"boot\":\"$B\""*) is_held=1;; *'"boot":"'*) is_held=;; *) is_held=1;; esac
  if [ -n "$is_held" ]; then
    [ -z "$ID" ] || is_held_by_us || fail "another cluster has taken the host"
    echo "held=$held"; exit 0
  fi
fi
write_holder
echo "taken=$B"
"""

# A worker ends with its host: after a reboot its lock is not written any more. A head has its host again.
_WRITE = r"""
exclusive && is_held_by_us || { echo gone; exit 0; }
B=$(cat /proc/sys/kernel/random/boot_id)
case "$held" in *"\"boot\":\"$B\""*|*'"is_head":true'*) ;; *) echo gone; exit 0;; esac
write_holder
echo "written=$B"
"""

# Processes that change their title lose their environment in /proc, as Ray's agents do: so whatever a process
# of ours has started is ours, too; what was ours is known by id and start time when its parent has ended.
# A session's directory is named by the processes that use it. Only what looks like one, and belongs to the
# user of the process, is removed: any user can start a process that names a directory.
_STOP = (
    REMOVE_SESSION
    + r"""
known=
family() {
  cat /proc/[0-9]*/stat 2>/dev/null | sed 's/^\([0-9]*\) (.*) /\1 /' |
  awk -v marked=" $(ours | tr '\n' ' ')" -v known=" $known " '
    { state[$1] = $2; parent[$1] = $3; name[$1] = $1 ":" $21 }
    END { for (p in parent) {
      if (state[p] == "Z") continue
      hit = index(known, " " name[p] " ")
      for (q = p; !hit && q > 1 && n[p]++ < 64; q = parent[q]) hit = index(marked, " " q " ")
      if (hit) print name[p]
    } }' | tr '\n' ' '
}
known=$(family)
sessions=$(for p in $known; do
  tr '\0' '\n' < /proc/${p%:*}/cmdline 2>/dev/null |
    sed -n 's/^--session[-_]dir=\(.*\/session_[^/]*\)$/\1/p' | sort -u | while IFS= read -r d; do
      [ ! -L "$d" ] && [ "$(stat -c %u -- "$d")" = "$(stat -c %u /proc/${p%:*})" ] && printf '%s\n' "$d"
    done
done 2>/dev/null | sort -u)
signal() { for p in $known; do kill -"$1" "${p%:*}" 2>/dev/null; done; }
wait_for_end() {
  for _ in $(seq $(($1 * 5))); do known=$(family); [ -z "$known" ] && return 0; sleep 0.2; done; return 1
}
if [ -n "$known" ]; then
  signal TERM; wait_for_end "$S" || { signal KILL; wait_for_end 5; }
fi
[ -z "$known" ] || { echo "left=$known"; exit 0; }
printf '%s\n' "$sessions" | while IFS= read -r d; do
  [ -z "$d" ] || remove_session "$d"
done
"""
)

# The lock is held until the end: a release that is repeated waits for the first one.
_RELEASE = (
    r"""
exclusive && is_held_by_us || { echo gone; exit 0; }
marks="$marks
MUSTER_NODE=$ID"
{
[ -z "$CONTAINER" ] || { "$PROGRAM" kill "$CONTAINER"; "$PROGRAM" rm -f "$CONTAINER"; } >/dev/null 2>&1
[ -z "$DISABLE" ] || bash -c "$DISABLE"  # else systemd would start again what is ended
"""
    + _STOP
    + r"""
[ -z "$CLEAN" ] || bash -c "$CLEAN"
rm -rf -- "$HOME"/.muster/node_lease.py "$HOME"/.muster/node_lease.log "$HOME"/.muster/mounts
rmdir "$HOME"/.muster 2>/dev/null
} 9<&-
remove_lock
echo released
"""
)


def look_line(lock_dir: str) -> str:
    """Return the line that prints a HostReport; it changes nothing but to make the lock's place."""
    return _line(_LOOK, D=lock_dir, ID="")


def take_line(lock_dir: str, holder: LockHolder) -> str:
    """Return the line that takes the host, unless somebody has it since its last start."""
    return _line(_TAKE, D=lock_dir, ID="", HOLDER=msgspec.json.encode(holder).decode())


def retake_line(lock_dir: str, holder: LockHolder) -> str:
    """Return the line by which a head has its host again after a reboot; it fails when somebody else has it.

    Many hosts empty the lock's directory when they start.
    """
    return _line(_TAKE, D=lock_dir, ID=holder.cloud_id, HOLDER=msgspec.json.encode(holder).decode())


def write_line(lock_dir: str, holder: LockHolder) -> str:
    """Return the line that replaces the holder's own contents of the lock."""
    holder = replace(holder, boot=_BOOT)
    return _line(_WRITE, D=lock_dir, ID=holder.cloud_id, HOLDER=msgspec.json.encode(holder).decode())


def guard_line(lock_dir: str, cloud_id: str) -> str:
    """Return the line that ends a command for a worker on a host that is not the worker's any more.

    A host may start again, or be taken over, while it is set up: Ray must not be started there then.
    """
    folder = f"~/{shlex.quote(lock_dir[2:])}" if lock_dir.startswith("~/") else shlex.quote(lock_dir)
    is_ours = f"[ -O {folder}/{LOCK} ] && [ -O {folder}/{LOCK.partition('/')[0]} ]"
    return (
        f"muster_lock=$({is_ours} && cat {folder}/{LOCK}); case $muster_lock in"
        f' *\'"cloud_id":"{cloud_id}"\'*"$(cat /proc/sys/kernel/random/boot_id)"*) ;;'
        ' *) echo "this host is not the node\'s any more" >&2; exit 3;; esac'
    )


def release_line(
    lock_dir: str, holder: LockHolder, *, container: str = "", container_program: str = ""
) -> str:
    """Return the line that ends what the holder runs on the host, cleans it, and then release it."""
    return _line(
        _RELEASE,
        D=lock_dir,
        ID=holder.cloud_id,
        S=str(STOP_S),
        DISABLE=disable_line(holder.cluster) if holder.is_head else "",
        CLEAN=removal_line(holder.cluster, holder.cloud_id) if holder.is_head else "",
        CONTAINER=container,
        PROGRAM=container_program or "docker",
    )


def stop_line(lock_dir: str, holder: LockHolder) -> str:
    """Return the line that ends what the holder runs on the host, and keeps the host."""
    return _line(_STOP + "\necho stopped\n", D=lock_dir, ID=holder.cloud_id, S=str(STOP_S))


def _line(script: str, **words: str) -> str:
    given = "".join(f"{name}={shlex.quote(value)}\n" for name, value in words.items())
    return f"bash -c {shlex.quote(given + _FUNCTIONS + script)}"


def read_report(printed: str) -> HostReport:
    """Return what `look_line` printed; lines that are not its own, such as a banner, are left out."""
    found = dict(line.split("=", 1) for line in printed.splitlines() if "=" in line)

    def number(name: str) -> float:
        try:
            return float(found.get(name, "0") or 0)
        except ValueError:
            return 0.0

    return HostReport(
        now=number("now"),
        cpus=int(number("cpus")),
        gpus=int(number("gpus")),
        memory_bytes=int(number("memory_kb")) * 1024,
        disk_bytes=int(number("disk_kb")) * 1024,
        boot=found.get("boot", ""),
        rays=int(number("rays")),
        lock=found.get("lock", ""),
        owner=found.get("owner", ""),
        services=tuple(found.get("services", "").split()),
        is_complete="lock" in found,
    )


def answer_of(printed: str, *expected: str) -> tuple[str, str]:
    """Return the word that a line printed, and what follows `=`; the last such line counts."""
    for line in reversed(printed.splitlines()):
        word, _, rest = line.strip().partition("=")
        if word in expected:
            return word, rest.strip()
    return "", printed.strip()[-200:]
