"""How muster logs in: in a pod, by a kubeconfig, with certificates; over real TLS."""

from __future__ import annotations

import base64
import re
import shutil
import ssl
import stat
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from tests.kube.api_server import NAMESPACE, running_api
from tests.mistakes.views import assert_line

from muster.base.clock import ManualClock
from muster.errors import ProviderDenied, ProviderMisconfigured
from muster.providers.kuberay.client import KubeClient, KubeUnreachable
from muster.providers.kuberay.credentials import KubeAccess, from_kubeconfig, in_cluster
from muster.providers.kuberay.source import connected_client

PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
needs_openssl = pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")


def openssl(*arguments):
    subprocess.run(["openssl", *arguments], check=True, capture_output=True)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    """A CA, the server's certificate for 127.0.0.1, and a client's."""
    folder = tmp_path_factory.mktemp("certificates")
    curve = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    openssl(
        *("req", "-x509", *curve, "-keyout", f"{folder}/ca.key", "-out", f"{folder}/ca.crt", "-days", "30"),
        *("-subj", "/CN=test-ca"),
    )
    for name, extra in (("server", "subjectAltName=IP:127.0.0.1"), ("client", "extendedKeyUsage=clientAuth")):
        (folder / "extra").write_text(extra)
        openssl(
            *("req", *curve, "-keyout", f"{folder}/{name}.key", "-out", f"{folder}/{name}.csr"),
            *("-subj", f"/CN={name}-of-test"),
        )
        openssl(
            *("x509", "-req", "-in", f"{folder}/{name}.csr", "-CA", f"{folder}/ca.crt", "-days", "30"),
            *("-CAkey", f"{folder}/ca.key", "-CAcreateserial", "-extfile", f"{folder}/extra"),
            *("-out", f"{folder}/{name}.crt"),
        )
    return folder


@pytest.fixture
def secure(certificates):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates / "server.crt", certificates / "server.key")
    context.load_verify_locations(certificates / "ca.crt")
    context.verify_mode = ssl.CERT_OPTIONAL
    with running_api(context) as server:
        yield server


@pytest.fixture
def account(tmp_path, secure, certificates) -> Path:
    """The files that Kubernetes mounts into a pod."""
    shutil.copy(certificates / "ca.crt", tmp_path / "ca.crt")
    (tmp_path / "token").write_text(secure.token("kuberay-1.3"))
    return tmp_path


def pod_environment(api, **more):
    return {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT_HTTPS": str(api.port), **more}


def lists(client):
    try:
        return client.get(PODS)["kind"]
    finally:
        client.close()


@needs_openssl
def test_a_pod_logs_in_with_its_service_account(secure, account):
    client, _ = connected_client(pod_environment(secure), service_account=account)
    assert lists(client) == "PodList"


@needs_openssl
def test_a_certificate_that_nobody_vouches_for_is_refused(secure, account, certificates):
    shutil.copy(certificates / "client.crt", account / "ca.crt")
    client, _ = connected_client(pod_environment(secure), service_account=account)
    with pytest.raises(KubeUnreachable) as refused:
        lists(client)
    said = re.sub(r":\d+", ":PORT", re.sub(r"\(.*\)", "(CAUSE)", str(refused.value)))
    assert_line("providers", "kuberay certificate", said)


@needs_openssl
def test_the_sidecars_variables_bring_a_certificate_and_another_ca(secure, account, certificates, tmp_path):
    (account / "ca.crt").unlink()
    more = {
        "RAY_KUBERAY_CLIENT_CERT_PATH": str(certificates / "client.crt"),
        "RAY_KUBERAY_CLIENT_KEY_PATH": str(certificates / "client.key"),
        "RAY_KUBERAY_CA_CERT_PATH": str(certificates / "ca.crt"),
    }
    client, _ = connected_client(pod_environment(secure, **more), service_account=account)
    assert lists(client) == "PodList"
    assert set(secure.client_names) == {"client-of-test"}


def bearer(token):
    return {"Authorization": f"Bearer {token}"}


def test_a_token_is_read_again_after_a_minute_and_after_a_refusal(tmp_path):
    clock, file = ManualClock(), tmp_path / "token"
    file.write_text("one\n")
    access = KubeAccess(url="https://here", token_file=file, clock=clock)
    assert access.headers() == bearer("one")
    file.write_text("two\n")
    assert access.headers() == bearer("one")
    assert access.headers(fresh=True) == bearer("two")
    file.write_text("three\n")
    clock.advance(61)
    assert access.headers() == bearer("three")
    file.unlink()
    clock.advance(61)
    assert access.headers() == bearer("three")  # one that cannot be read now was good before
    assert "three" not in repr(access)


@pytest.mark.parametrize(
    ("environment", "text"),
    [
        ({}, "this is not a pod of a Kubernetes cluster"),
        ({"KUBERNETES_SERVICE_HOST": "http://10.0.0.1"}, "would send the token in the clear"),
        ({"KUBERNETES_SERVICE_HOST": "h", "RAY_KUBERAY_CLIENT_CERT_PATH": "x"}, "belong together"),
    ],
)
def test_what_is_missing_is_said(environment, text, tmp_path):
    with pytest.raises(ProviderMisconfigured, match=text):
        in_cluster(environment, tmp_path)


def test_addresses_are_ipv6_too_and_have_a_default(tmp_path):
    (tmp_path / "token").write_text("t")
    assert in_cluster({}, tmp_path).url == "https://kubernetes.default:443"
    found = in_cluster({"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "6443"}, tmp_path)
    assert found.url == "https://[fd00::1]:6443"


def test_a_token_that_cannot_be_read_is_said_with_its_place(tmp_path):
    access = KubeAccess(url="https://here", token_file=tmp_path / "token")
    with pytest.raises(ProviderDenied) as denied:
        access.headers()
    assert_line("providers", "kuberay token", str(denied.value).replace(str(tmp_path), "TMP"))


@pytest.mark.parametrize("text", ["x", "0", "-1", "1e9"])
def test_a_time_limit_that_is_none_is_refused(text, tmp_path):
    (tmp_path / "token").write_text("t")
    with pytest.raises(ProviderMisconfigured, match="KUBERAY_REQUEST_TIMEOUT_S"):
        connected_client({"KUBERAY_REQUEST_TIMEOUT_S": text}, service_account=tmp_path)


# -- kubeconfig -------------------------------------------------------------------------------------


def kubeconfig(folder, cluster, user, namespace="research"):
    data = {
        "current-context": "here",
        "contexts": [
            {"name": "here", "context": {"cluster": "c", "user": "u", "namespace": namespace}},
            {"name": "lost", "context": {"cluster": "gone", "user": "u"}},
        ],
        "clusters": [{"name": "c", "cluster": cluster}],
        "users": [{"name": "u", "user": user}],
    }
    path = folder / "config"
    path.write_text(yaml.safe_dump(data))
    return path


def test_a_kubeconfig_has_a_server_a_token_and_a_namespace(api, tmp_path):
    path = kubeconfig(tmp_path, {"server": api.url}, {"token": api.token("kuberay-1.3")})
    access, namespace = from_kubeconfig(path, {})
    assert (lists(KubeClient(access)), namespace) == ("PodList", "research")


@needs_openssl
def test_a_kubeconfig_may_hold_certificates_as_text(secure, certificates, tmp_path):
    def text(name):
        return base64.b64encode((certificates / name).read_bytes()).decode()

    user = {"client-certificate-data": text("client.crt"), "client-key-data": text("client.key")}
    user["token"] = secure.token("kuberay-1.3")
    path = kubeconfig(tmp_path, {"server": secure.url, "certificate-authority-data": text("ca.crt")}, user)
    assert lists(KubeClient(from_kubeconfig(path, {})[0])) == "PodList"
    assert set(secure.client_names) == {"client-of-test"}


def test_a_program_of_the_kubeconfig_brings_a_token_and_is_asked_again_when_it_is_refused(api, tmp_path):
    first, second = api.token("kuberay-1.3"), api.token("kuberay-1.3")
    (tmp_path / "token").write_text(first)
    program = tmp_path / "login"
    program.write_text(
        f"#!{sys.executable}\nimport json, os\n"
        f"token = open({str(tmp_path / 'token')!r}).read() if os.environ['WHO'] == 'me' else ''\n"
        "print(json.dumps({'status': {'token': token}}))\n"
    )
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    user = {"exec": {"command": str(program), "env": [{"name": "WHO", "value": "me"}]}}
    client = KubeClient(from_kubeconfig(kubeconfig(tmp_path, {"server": api.url}, user), {"PATH": "/bin"})[0])
    assert lists(client) == "PodList"
    (tmp_path / "token").write_text(second)
    api.revoke(first)
    assert lists(client) == "PodList"


def test_a_program_that_is_not_there_is_named(api, tmp_path):
    user = {"exec": {"command": "/no/such/program"}}
    client = KubeClient(from_kubeconfig(kubeconfig(tmp_path, {"server": api.url}, user), {})[0])
    with pytest.raises(ProviderDenied, match="/no/such/program"):
        lists(client)


@pytest.mark.parametrize(
    ("text", "context", "said"),
    [
        ("{", "", "is not YAML"),
        ("[]", "", "is not a kubeconfig"),
        ("contexts: []", "", "has no context ''; there are none"),
    ],
)
def test_a_kubeconfig_that_cannot_be_used_is_said(tmp_path, text, context, said):
    (tmp_path / "config").write_text(text)
    with pytest.raises(ProviderMisconfigured, match=said):
        from_kubeconfig(tmp_path / "config", {}, context)


def test_a_context_without_its_cluster_is_said(api, tmp_path):
    with pytest.raises(ProviderMisconfigured, match="gone"):
        from_kubeconfig(kubeconfig(tmp_path, {"server": api.url}, {}), {}, "lost")
