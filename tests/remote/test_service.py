"""What keeps the monitor running on a head: the files and lines as data, and a host that reboots."""

from __future__ import annotations

import asyncio
import contextlib
import shlex
import shutil
import subprocess
import sys
import time

import psutil
import pytest
from tests.hosts import USER_HOME
from tests.remote.local_runner import LocalRunner

from muster.errors import RemoteError
from muster.remote.runner import RunWhere
from muster.remote.service import (
    OWN_HOME,
    HeadService,
    StartedBy,
    boot_script,
    cron_line,
    install_service,
    install_steps,
    machine_script,
    monitor_script,
    ray_unit_text,
    removal_line,
    remove_service,
    stop_line,
    supervisor_script,
    unit_text,
)

HOSTS = 1
THERE = f"{USER_HOME}/.muster/clusters/c1"  # a host has a home of its own
NOTHING: dict[str, str] = {}
ODD = "/srv/u/it's 100% $HOME"


def service(directory="/srv/u/.muster/clusters/c1", **changes):
    known = {
        "cluster": "c1",
        "directory": str(directory),
        "python": sys.executable,
        "command": (sys.executable, "-c", "import time; print('here', flush=True); time.sleep(600)"),
    }
    return HeadService(**{**known, **changes})


def test_scripts_quote_every_word_and_hold_the_environment():
    odd = service(
        ODD, command=("muster", "monitor", "a b;c"), environment={"KEY": "it's"}, boot_commands=("a; b",)
    )
    about = "#!/bin/sh\n# Written by muster for the cluster c1; `muster down` removes it.\n"
    head = about + "export KEY='it'\"'\"'s'\n"
    assert monitor_script(odd) == head + "exec muster monitor 'a b;c'\n"
    assert boot_script(odd) == head + "unset MUSTER_SERVICE\nbash --login -c 'a; b' || exit 1\n"
    assert supervisor_script(odd).startswith(head + "export MUSTER_SERVICE=c1\n")
    assert shlex.split(supervisor_script(odd).splitlines()[-1])[:6] == [
        "exec", sys.executable, "-m", "muster.host.supervisor", "run", ODD,
    ]  # fmt: skip


def test_a_unit_restarts_the_supervisor_for_ever_and_leaves_ray_to_a_unit_of_its_own():
    text = unit_text(service(ODD), StartedBy.SYSTEMD)
    assert 'ExecStart=/bin/sh "/srv/u/it\'s 100%% $$HOME/supervisor.sh"\n' in text
    assert "Restart=always\n" in text and "StartLimitIntervalSec=0\n" in text
    assert "After=network-online.target muster-c1-ray.service\n" in text
    assert "WantedBy=default.target" in unit_text(service(), StartedBy.USER_SYSTEMD)


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
@pytest.mark.parametrize("started_by", [StartedBy.SYSTEMD, StartedBy.USER_SYSTEMD])
def test_systemd_has_nothing_to_say_about_the_units(tmp_path, started_by):
    plain, boxed = service(ODD), service(ODD, cluster="c2", container="ray")
    texts = {
        "muster-c1.service": unit_text(plain, started_by),
        "muster-c1-ray.service": ray_unit_text(plain, started_by),
        "muster-c2.service": unit_text(boxed, started_by),
    }
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    where = ["--user"] if started_by is StartedBy.USER_SYSTEMD else []
    done = subprocess.run(
        ["systemd-analyze", *where, "verify", *(str(tmp_path / name) for name in texts)],
        capture_output=True,
        text=True,
        env={"PATH": "/usr/bin:/bin", "XDG_RUNTIME_DIR": str(tmp_path), "HOME": str(tmp_path)},
        check=False,
    )
    said = [line for line in done.stderr.splitlines() if "muster-" in line]
    assert (done.returncode, said) == (0, [])


def test_a_supervisor_starts_ray_again_where_it_knows_its_address():
    words = shlex.split(supervisor_script(service(ODD, address="10.0.0.1:6379")).splitlines()[-1])
    assert words[words.index("--server") + 1 :][:2] == ["10.0.0.1:6379", f"{ODD}/boot.sh"]
    assert "--server" not in supervisor_script(service(ODD))


def test_what_a_crashed_gcs_has_left_is_ended_before_the_next_one_starts(tmp_path):
    """Ray refuses to start while a raylet with the same address runs, for up to a minute."""
    sleep = [sys.executable, "-c", "import time; time.sleep(600)"]
    left = [subprocess.Popen([*sleep, f"--gcs{sign}address=127.0.0.9:1"]) for sign in "-_"]
    other = subprocess.Popen([*sleep, "--gcs-address=127.0.0.9:11"])
    started = tmp_path / "started"
    text = boot_script(service(address="127.0.0.9:1", boot_commands=(f"touch {started}",)))
    subprocess.run(["sh", "-c", text], check=True)
    assert [one.wait(10) for one in left] == [-9, -9]
    assert (other.poll(), started.exists()) == (None, True)
    other.kill()
    other.wait()


def test_the_line_of_the_crontab_escapes_what_cron_would_cut_at():
    line = cron_line(service(ODD))
    assert (
        line.startswith("@reboot env MUSTER_SERVICE=c1 sh ")
        and "100\\%" in line
        and line.replace("\\%", "").count("%") == 0
    )


def test_what_starts_a_container_is_on_the_machine_and_starts_ray_and_the_supervisor_in_it():
    boxed = service(ODD, container="ray", container_program="podman")
    assert cron_line(boxed).startswith('@reboot env MUSTER_SERVICE=c1 sh "$HOME"/.muster/boot-c1.sh ')
    script = machine_script(boxed)
    assert "until podman start ray " in script
    assert shlex.split(shlex.split(script)[-1])[:4] == ["exec", "sh", f"{ODD}/supervisor.sh", "boot"]
    for kind in StartedBy:
        places = {step.where for step in install_steps(boxed, kind) if "MUSTER_TEXT" not in step.command}
        expected = {RunWhere.AUTO} if kind is StartedBy.NOBODY else {RunWhere.AUTO, RunWhere.HOST}
        assert places == expected
    text = unit_text(boxed, StartedBy.SYSTEMD)
    assert "ExecStart=/bin/sh %h/.muster/boot-c1.sh\n" in text


def test_what_must_hold_on_the_machine_is_checked_before_anything_is_started():
    plain, boxed = service(check="is ours"), service(check="is ours", container="ray")
    assert boot_script(plain).splitlines()[-1] == "is ours || exit 1"
    assert monitor_script(plain).splitlines()[-2] == "is ours || exit 1"
    assert "is ours" not in monitor_script(boxed) + boot_script(boxed)
    assert machine_script(boxed).splitlines()[2] == "is ours || exit 1"


def test_secrets_of_the_environment_are_in_no_command():
    secret = service(environment={"TOKEN": "s3cret"})
    commands = [step.command for kind in StartedBy for step in install_steps(secret, kind)]
    assert not [command for command in commands if "s3cret" in command]


def test_every_command_is_valid_bash():
    boxed = service(ODD, container="ray")
    steps = [step for one in (service(ODD), boxed) for kind in StartedBy for step in install_steps(one, kind)]
    for step in steps:
        subprocess.run(["bash", "-n", "-c", step.command], check=True)
        subprocess.run(["sh", "-n", "-c", step.text or ":"], check=True)
    for line in (removal_line("c-1.x"), stop_line("c-1.x")):
        subprocess.run(["bash", "-n", "-c", line], check=True)


@pytest.mark.slow
def test_a_supervisor_that_cannot_start_is_reported_with_the_place_to_look(tmp_path, monkeypatch):
    monkeypatch.setattr("muster.remote.service._START_S", 1)
    broken = service(tmp_path / "home", python="/no/such/python")
    with pytest.raises(
        RemoteError, match=r"not be started on the head \(.*no/such/python.*supervisor\.log there"
    ):
        asyncio.run(install_service(LocalRunner(tmp_path, {"PATH": "/usr/bin:/bin"}), broken))


class HostRunner(LocalRunner):
    """Runs commands on a host in a namespace, over its sshd."""

    def __init__(self, hosts, host):
        self.hosts, self.host = hosts, host

    async def run(self, command, *, secrets=NOTHING, **options):
        lines = "".join(f"export {key}={shlex.quote(value)}\n" for key, value in secrets.items())
        argv = [*self.hosts.ssh(self.host), "bash", "-s"]
        done = self.hosts.run_in_controller(argv, input=f"{lines}({command}\n) </dev/null\n")
        assert done.returncode == 0, done.stderr
        return done.stdout


@pytest.mark.slow
@pytest.mark.timeout(480)
def test_a_killed_monitor_is_back_a_reboot_brings_ray_and_it_back_and_removing_leaves_nothing(hosts):
    """Cron's daemon does not run in the namespace: the test plays the `@reboot` lines, as cron would."""
    host = hosts[0]
    runner = HostRunner(hosts, host)
    directory = host.path(THERE)
    what = service(
        THERE,
        environment={"TOKEN": "s3cret"},
        boot_commands=(f"echo \"$TOKEN\" > '{THERE}/ray-started'",),
    )
    has_cron = shutil.which("crontab") is not None

    def is_monitor(process):
        with contextlib.suppress(psutil.NoSuchProcess):  # it has ended since it was listed
            words = process.cmdline()
            return "time.sleep(600)" in " ".join(words[:3]) and "supervisor" not in words
        return False

    def wait_for_monitor(not_pid=0):
        give_up = time.monotonic() + 120
        while time.monotonic() < give_up:
            found = [one for one in hosts.processes(host) if one.pid != not_pid and is_monitor(one)]
            if found:
                return found[0]
            time.sleep(0.05)
        raise AssertionError(hosts.commands(host))

    other = "@reboot env MUSTER_SERVICE=c1-2 true\n" if has_cron else ""
    hosts.run_on(host, ["crontab", "-"], input=other)
    for _ in range(2):  # the second time changes nothing
        installed = asyncio.run(install_service(runner, what))
    first = wait_for_monitor()
    assert installed.started_by is (StartedBy.CRON if has_cron else StartedBy.NOBODY)
    assert (directory / "monitor.sh").stat().st_mode & 0o077 == 0
    first.kill()
    wait_for_monitor(first.pid)
    assert not (directory / "ray-started").exists()

    hosts.boot(host)
    assert hosts.commands(host) == []
    if has_cron:
        lines = hosts.run_on(host, ["crontab", "-l"]).stdout.splitlines()
        assert lines == [other.strip(), cron_line(what)]
        command = lines[1].removeprefix("@reboot ").replace("\\%", "%")
        hosts.run_on(host, ["sh", "-c", f"setsid {command} &"])
        wait_for_monitor()
        assert (directory / "ray-started").read_text() == "s3cret\n"

    for _ in range(2):
        asyncio.run(remove_service(runner, "c1"))
    assert hosts.commands(host) == []
    assert hosts.run_on(host, ["crontab", "-l"]).stdout == other
    asyncio.run(runner.run(removal_line("c1")))
    assert directory.exists()  # it may be the launcher's
    (directory / OWN_HOME).write_text("the-next-head\n")
    asyncio.run(runner.run(removal_line("c1", "this-head")))
    assert directory.exists()  # hosts may share it
    asyncio.run(runner.run(removal_line("c1", "the-next-head")))
    assert not host.path(f"{USER_HOME}/.muster").exists()
