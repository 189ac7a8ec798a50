#!/bin/sh
# Make .venv and install muster into it. Called by the Makefile; safe to run again.
#   usage: setup.sh VENV EXTRA [REQUIREMENT]     EXTRA: core, dev or bench
# PYTHON=... picks the interpreter; otherwise the newest one found that is new enough.
set -eu

venv=$1
extra=$2
oldest=3.10

say() { printf '%s\n' "setup: $*"; }
fail() { printf '%s\n' "setup: $*" >&2; exit 1; }

is_new_enough() {
    "$1" -c 'import sys; sys.exit(sys.version_info < (3, 10))' >/dev/null 2>&1
}

can_make_venv() {
    "$1" -c 'import venv, ensurepip' >/dev/null 2>&1
}

version_of() {
    "$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null
}

# Sets `python`. The order is newest first; an interpreter that cannot make a venv is passed over while
# another can, so that a half-installed Python does not hide a whole one.
find_python() {
    old=''
    bare=''
    for candidate in ${PYTHON:-python3.13 python3.12 python3.11 python3.10 python3 python}; do
        command -v "$candidate" >/dev/null 2>&1 || continue
        version=$(version_of "$candidate") || continue # a pyenv shim of a version that is not active
        if ! is_new_enough "$candidate"; then
            old="$candidate is Python $version"
        elif can_make_venv "$candidate"; then
            python=$candidate
            return
        else
            bare=${bare:-$version}
        fi
    done
    if [ -n "$bare" ]; then
        fail "Python $bare has no venv module. On Debian or Ubuntu: sudo apt install python$bare-venv"
    elif [ -n "$old" ]; then
        fail "muster needs Python $oldest or newer, but $old. Install a newer one, or: make PYTHON=/path/to/python"
    fi
    fail "no Python found. Install Python $oldest or newer, or: make PYTHON=/path/to/python"
}

make_venv() {
    if [ -x "$venv/bin/python" ] && is_new_enough "$venv/bin/python"; then
        return
    fi
    find_python
    say "making $venv with $python (Python $(version_of "$python"))"
    rm -rf "$venv"
    "$python" -m venv "$venv" || fail "$python could not make $venv; the lines above say why"
}

# uv does not read pip's configuration, so hand over the index that pip would use.
adopt_pip_index() {
    [ -z "${UV_DEFAULT_INDEX:-}${UV_INDEX_URL:-}" ] || return 0
    index=${PIP_INDEX_URL:-$("$venv/bin/python" -m pip config get global.index-url 2>/dev/null || true)}
    [ -z "$index" ] || { UV_DEFAULT_INDEX=$index; export UV_DEFAULT_INDEX; }
}

install() {
    if [ ! -x "$venv/bin/uv" ]; then
        "$venv/bin/python" -m pip install --quiet --disable-pip-version-check uv 2>/dev/null ||
            say "uv could not be installed, using pip"
    fi
    adopt_pip_index
    if [ -x "$venv/bin/uv" ] &&
        "$venv/bin/uv" pip install --quiet $compile --python "$venv/bin/python" "$@" 2>"$venv/uv.log"; then
        return
    fi
    [ ! -x "$venv/bin/uv" ] || say "uv could not install (see $venv/uv.log), using pip"
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check "$@" ||
        fail "installing failed; the lines above say why"
}

# Programs of Debian that are unpacked into the venv: that needs no root, and no server is started behind anybody's back.
# Without them some tests are skipped, and say so.
#   usage: get_unpacked PROGRAM FOLDER "what will be skipped" PACKAGE...
get_unpacked() {
    program=$1 folder=$venv/$2 skipped=$3
    shift 3
    if command -v "$program" >/dev/null 2>&1 || [ -x "$folder/usr/bin/$program" ]; then
        return 0
    fi
    mkdir -p "$folder"
    if command -v apt-get >/dev/null 2>&1 && unpack "$@" >"$folder/apt.log" 2>&1; then
        say "unpacked $program into $folder"
    else
        say "no $program: $skipped will be skipped (apt or brew install it)"
    fi
}

unpack() (
    cd "$folder" || return 1
    apt-get download "$@" || { apt-get update && apt-get download "$@"; } || return 1
    for package in *.deb; do
        dpkg-deb -x "$package" . || return 1
    done
)

get_redis() {
    set -- redis-server redis-tools liblzf1 libjemalloc2
    get_unpacked redis-server redis "tests of a Ray head that keeps its state" "$@"
}

get_promtool() {
    get_unpacked promtool prometheus "tests of when each alert fires" prometheus
}

# What the tests make hosts of: network namespaces with an sshd each, and containers on them. These cannot be used
# unpacked, so root gets them installed, but not where an init would start their servers. Without them those tests
# are skipped, and say so.
get_hosts() {
    missing=''
    for program in sshd rsync ip podman runc crontab; do
        PATH=$PATH:/usr/sbin:/sbin command -v "$program" >/dev/null 2>&1 || missing="$missing $program"
    done
    [ -n "$missing" ] || return 0
    if [ "$(id -u)" = 0 ] && [ ! -d /run/systemd/system ] && command -v apt-get >/dev/null 2>&1 &&
        install_hosts >"$venv/apt-hosts.log" 2>&1; then
        say "installed openssh-server, rsync, iproute2, podman and cron for the tests"
    else
        say "missing:$missing. Tests that need them will be skipped (openssh-server, rsync, iproute2, podman, runc, cron)"
    fi
}

install_hosts() (
    DEBIAN_FRONTEND=noninteractive
    export DEBIAN_FRONTEND
    set -- openssh-server openssh-client rsync iproute2 podman runc cron
    apt-get install -y -qq --no-install-recommends "$@" </dev/null ||
        { apt-get update -qq && apt-get install -y -qq --no-install-recommends "$@" </dev/null; }
)

# A small Slurm for the tests of trials and nodes in jobs. Root gets Debian's, but not where an init would start its
# daemons; without it those tests are skipped, and say so.
get_slurm() {
    missing=''
    for program in munged slurmctld slurmd sbatch; do
        PATH=$PATH:/usr/sbin:/sbin command -v "$program" >/dev/null 2>&1 || missing="$missing $program"
    done
    [ -n "$missing" ] || return 0
    if [ "$(id -u)" = 0 ] && [ ! -d /run/systemd/system ] && command -v apt-get >/dev/null 2>&1 &&
        install_slurm >"$venv/apt-slurm.log" 2>&1; then
        say "installed munge, slurmctld, slurmd and slurm-client for the tests"
    else
        say "missing:$missing. Tests on Slurm will be skipped (munge slurmctld slurmd slurm-client)"
    fi
}

install_slurm() (
    DEBIAN_FRONTEND=noninteractive
    export DEBIAN_FRONTEND
    set -- munge slurmctld slurmd slurm-client
    apt-get install -y -qq --no-install-recommends "$@" </dev/null ||
        { apt-get update -qq && apt-get install -y -qq --no-install-recommends "$@" </dev/null; }
)

# A browser for the tests of `muster page`. Root gets Debian's; without one those tests are skipped, and say so.
get_browser() {
    for program in chromium chromium-browser google-chrome; do
        ! command -v "$program" >/dev/null 2>&1 || return 0
    done
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1 && install_browser >"$venv/apt-browser.log" 2>&1; then
        say "installed chromium for the tests of the page"
    else
        say "no chromium: tests of the page in a browser will be skipped (apt or brew install it)"
    fi
}

install_browser() (
    DEBIAN_FRONTEND=noninteractive
    export DEBIAN_FRONTEND
    set -- chromium fonts-dejavu-core
    apt-get install -y -qq --no-install-recommends "$@" </dev/null ||
        { apt-get update -qq && apt-get install -y -qq --no-install-recommends "$@" </dev/null; }
)

make_venv
compile=''
case $extra in
    core) what='.' ;;
    dev) what='.[dev]' compile=--compile-bytecode ;; # hundreds of processes import it in `make test`
    *) what=".[$extra]" ;;
esac
say "installing muster ($extra) into $venv"
install --editable "$what" ${3:+"$3"}
[ "$extra" != dev ] || get_redis
[ "$extra" != dev ] || get_promtool
[ "$extra" != dev ] || get_hosts
[ "$extra" != dev ] || get_slurm
[ "$extra" != dev ] || get_browser
