"""Connections between driver and actors, encrypted with certificates as Ray has them."""

from __future__ import annotations

import contextlib
import gc
import os
import select
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections import Counter

import pytest

from muster.base.clock import SystemClock
from muster.base.framing import FrameKind, frame
from muster.engines.ray.tls import TlsTunnel, uses_tls
from muster.engines.worker.handle import Poller
from muster.engines.worker.handshake import DriverUnreachable, Listener, call
from muster.errors import EngineError

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        shutil.which("openssl") is None, reason="certificates are made by openssl, which is not here"
    ),
]

KEY = b"k" * 32


def openssl(*arguments, folder):
    subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)


def make_ca(folder, name):
    made = ["-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", f"/CN={name}"]
    openssl("req", *made, "-keyout", f"{name}.key", "-out", f"{name}.crt", folder=folder)


def make_certificate(folder, name, ca):
    """Return the environment of a process with that certificate, as Ray wants it."""
    subject = ["-newkey", "rsa:2048", "-nodes", "-subj", f"/CN={name}"]
    openssl("req", *subject, "-keyout", f"{name}.key", "-out", f"{name}.csr", folder=folder)
    signing = ["-CA", f"{ca}.crt", "-CAkey", f"{ca}.key", "-CAcreateserial", "-days", "2"]
    openssl("x509", "-req", "-in", f"{name}.csr", *signing, "-out", f"{name}.crt", folder=folder)
    return {
        "RAY_USE_TLS": "1",
        "RAY_TLS_SERVER_CERT": str(folder / f"{name}.crt"),
        "RAY_TLS_SERVER_KEY": str(folder / f"{name}.key"),
        "RAY_TLS_CA_CERT": str(folder / f"{ca}.crt"),
    }


@pytest.fixture(scope="module")
def environments(tmp_path_factory):
    folder = tmp_path_factory.mktemp("certificates")
    for ca in ("ours", "theirs"):
        make_ca(folder, ca)
    return {
        "node": make_certificate(folder, "node", "ours"),
        "stranger": make_certificate(folder, "stranger", "theirs"),
    }


class Server(threading.Thread):
    """A driver that answers whatever an actor sends with the same, reversed."""

    def __init__(self, environment):
        super().__init__(daemon=True)
        self._poller, self.hellos, self._lines = Poller(), [], {}
        self.listener = Listener(self._poller, KEY, SystemClock(), self._admit)
        self.listener.tls = TlsTunnel(environment) if environment is not None else None
        self.address = self.listener.listen("127.0.0.1")
        self._is_over = False
        self.start()

    def _admit(self, line, hello):
        if hello:
            self.hellos.append(hello)
            self._lines[line.fileno()] = line
            self._poller.add_reader(line.fileno())
        else:
            line.close()

    def run(self):
        while not self._is_over:
            for fd, _ in self._poller.poll(0.05):
                if fd in self._lines:
                    self._answer(fd)
                else:
                    self.listener.on_ready(fd)

    def _answer(self, fd):
        data = b""
        with contextlib.suppress(ConnectionResetError):
            data = self._lines[fd].recv(1 << 16)
        if not data:
            self._poller.forget(fd)
            self._lines.pop(fd).close()
            return
        self._lines[fd].setblocking(True)
        with contextlib.suppress(BrokenPipeError):
            self._lines[fd].sendall(data[::-1])
        self._lines[fd].setblocking(False)

    def close(self):
        self._is_over = True
        self.join()
        for line in self._lines.values():
            line.close()
        self.listener.close()
        self._poller.close()


class Wire:
    """A place in the network that carries bytes on and keeps a copy."""

    def __init__(self, target):
        self._server = socket.create_server(("127.0.0.1", 0))
        self.address, self._target, self.seen = self._server.getsockname(), target, bytearray()
        self._thread = threading.Thread(target=self._carry)
        self._thread.start()

    def _carry(self):
        with self._server, self._server.accept()[0] as one, socket.create_connection(self._target) as other:
            other_of = {one: other, other: one}
            while True:
                for source in select.select([one, other], [], [])[0]:
                    data = source.recv(1 << 16)
                    if not data:
                        return
                    self.seen += data
                    other_of[source].sendall(data)

    def close(self):
        self._thread.join(20)


def wait_until(is_true):
    give_up = time.monotonic() + 20
    while not is_true():
        assert time.monotonic() < give_up
        time.sleep(0.01)


def exchange(line, message):
    line.sendall(message)
    received = b""
    line.settimeout(20)
    while len(received) < len(message):
        received += line.recv(1 << 16)
    return received


@pytest.mark.parametrize("encrypts", [True, False])
def test_plain_text_is_on_the_wire_only_without_tls(environments, encrypts):
    environment = environments["node"] if encrypts else None
    server = Server(environment)
    wire = Wire(server.address)
    tls = TlsTunnel(environment) if encrypts else None
    line = call([wire.address], KEY, {"hostname": "a secret name"}, tls)
    secret = frame(FrameKind.REPORT, b"a secret result")
    assert exchange(line, secret) == secret[::-1]
    line.close()
    seen = bytes(wire.seen)
    assert [text in seen for text in (b"a secret name", b"a secret result")] == [not encrypts] * 2
    assert server.hellos == [{"hostname": "a secret name"}]
    wire.close()
    server.close()
    if tls is not None:
        tls.close()


def test_many_large_messages_arrive_whole_in_both_directions(environments):
    server, tls = Server(environments["node"]), TlsTunnel(environments["node"])
    lines = [call([server.address], KEY, {"number": n}, tls) for n in range(5)]
    found = {}

    def use(n, line):
        found[n] = all(
            Counter(exchange(line, message)) == Counter(message)
            for message in (bytes([n + k]) * 300_000 + os.urandom(200_000) for k in range(4))
        )

    users = [threading.Thread(target=use, args=each) for each in enumerate(lines)]
    for each in users:
        each.start()
    for each in users:
        each.join(60)
    for line in lines:
        line.close()
    server.close()
    tls.close()
    assert found == dict.fromkeys(range(5), True)


@pytest.mark.parametrize(
    ("driver", "actor", "what"),
    [("node", "stranger", "certificate|ca|hung up"), ("stranger", "node", "certificate verify failed")],
)
def test_a_certificate_of_another_ca_is_refused_by_either_side(environments, driver, actor, what):
    # Each side trusts its own CA; the certificate of the other is signed by another one.
    server, tls = Server(environments[driver]), TlsTunnel(environments[actor])
    if driver == "node":  # an actor that verifies nothing of the driver is refused too
        tls._client.load_verify_locations(environments["node"]["RAY_TLS_CA_CERT"])
    with pytest.raises(DriverUnreachable, match=what):
        call([server.address], KEY, {"number": 1}, tls)
    tls.close()
    server.close()
    assert server.hellos == []


def test_a_caller_without_tls_gets_nothing(environments):
    server = Server(environments["node"])
    with socket.create_connection(server.address) as stranger:
        stranger.sendall(frame(FrameKind.HELLO, b"x" * 100))
        stranger.settimeout(20)
        received = b""
        with contextlib.suppress(ConnectionResetError):
            while data := stranger.recv(64):
                received += data
    server.close()
    assert len(received) < 16  # at most an alert: no challenge
    assert server.hellos == []


def test_a_connection_that_one_side_closes_ends_on_the_other(environments):
    server, tls = Server(environments["node"]), TlsTunnel(environments["node"])
    line = call([server.address], KEY, {"number": 1}, tls)
    wait_until(lambda: server._lines)  # the caller has its proof before the driver admits it
    (held,) = server._lines.values()
    line.sendall(b"last words")
    line.close()
    tls.flush(5)
    wait_until(lambda: not server._lines)
    assert held.fileno() == -1
    server.close()
    tls.close()


def test_strangers_take_few_descriptors_with_tls_too(environments):
    from muster.engines.worker.handshake import MOST_PENDING

    gc.collect()  # sockets of earlier tests
    server = Server(environments["node"])
    before = len(os.listdir("/proc/self/fd"))
    strangers = [socket.create_connection(server.address) for _ in range(4 * MOST_PENDING)]
    give_up = time.monotonic() + 20
    while (held := len(os.listdir("/proc/self/fd")) - before - len(strangers)) != 3 * MOST_PENDING:
        assert time.monotonic() < give_up, f"{held} descriptors"  # three each: with two ends of a plain one
        time.sleep(0.05)
    tls = TlsTunnel(environments["node"])
    call([server.address], KEY, {"number": 1}, tls).close()
    for each in strangers:
        each.close()
    server.close()
    tls.close()
    assert server.hellos == [{"number": 1}]


LAST_WORDS = """
import os, sys, threading
from muster.engines.ray.failures import report_death_through
from muster.engines.worker.handshake import call
from muster.engines.ray.tls import TlsTunnel
tls = TlsTunnel(os.environ)
line = call([("127.0.0.1", int(sys.argv[1]))], b"k" * 32, {"number": 1}, tls)
report_death_through(line, tls)
os._exit(7)
"""


def test_the_exit_code_of_a_process_that_leaves_at_once_arrives(environments):
    server = Server(environments["node"])
    got = []
    server._answer = lambda fd: (got.append(server._lines[fd].recv(100)), server._poller.forget(fd))
    done = subprocess.run(
        [sys.executable, "-c", LAST_WORDS, str(server.address[1])],
        env={**os.environ, **environments["node"]},
        timeout=60,
        check=False,
    )
    wait_until(lambda: got)
    server.close()
    assert (done.returncode, got) == (7, [frame(FrameKind.LEFT, b"i\x07\x00\x00\x00")])


def test_certificates_that_are_not_there_are_named(environments):
    environment = {**environments["node"], "RAY_TLS_CA_CERT": "/nowhere"}
    with pytest.raises(EngineError, match="RAY_TLS_CA_CERT"):
        TlsTunnel(environment)
    with pytest.raises(EngineError, match="RAY_TLS_SERVER_KEY, RAY_TLS_CA_CERT"):
        TlsTunnel(
            {**environments["node"], "RAY_TLS_SERVER_KEY": environments["stranger"]["RAY_TLS_SERVER_KEY"]}
        )
    assert (uses_tls(environment), uses_tls({}), uses_tls({"RAY_USE_TLS": "0"})) == (True, False, False)
