from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
from tests.page.asgi import ask, ask_raw

from muster.errors import StoreError
from muster.page.guard import MAX_HEADER_BYTES, Guard, load_token

TOKEN = "t" * 43
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT", "PROPFIND")


async def inner(scope, receive, send):
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"inside"})


@pytest.fixture
def guard() -> Guard:
    return Guard(inner, token=TOKEN)


def bearer(token: str = TOKEN) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8787", "localhost.evil.example", "", "127.0.0.1.nip.io"]
)
def test_a_rebound_host_name_is_refused_whatever_the_method(guard: Guard, method: str, host: str):
    assert ask(guard, "/api/list", method, host=host, **bearer()).status == 403


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:8787", "127.0.0.1:1", "[::1]:8787", "localhost:"])
def test_names_of_this_computer_are_allowed_with_any_port(guard: Guard, host: str):
    assert ask(guard, host=host, **bearer()).text == "inside"


def test_two_host_headers_or_none_are_refused(guard: Guard):
    pair = (b"authorization", f"Bearer {TOKEN}".encode())
    found = [
        ask_raw(guard, "/", "GET", "", [pair, *hosts]).status
        for hosts in ([], [(b"host", b"localhost"), (b"host", b"evil.example")])
    ]
    assert found == [403, 403]


def test_a_name_that_the_user_allows_is_allowed():
    guard = Guard(inner, token=TOKEN, hosts=["Head.example"])
    assert ask(guard, host="head.example:80", **bearer()).status == 200


@pytest.mark.parametrize("method", [m for m in METHODS if m not in ("GET", "HEAD")])
def test_only_reading_is_allowed(guard: Guard, method: str):
    assert ask(guard, method=method, **bearer()).status == 405


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"x_muster_action": "1", "content_length": "20"}, 200),
        ({"x_muster_action": "1", "content_length": "20", "origin": "http://localhost"}, 200),
        ({"content_length": "20"}, 403),
        ({"x_muster_action": "1", "origin": "http://evil.example"}, 403),
        ({"x_muster_action": "1", "sec_fetch_site": "cross-site", "sec_fetch_mode": "cors"}, 403),
        ({"x_muster_action": "1", "content_length": "5000"}, 413),
    ],
)
def test_an_action_passes_only_where_it_is_allowed_and_from_this_page(headers: dict, status: int):
    path = "/api/experiment/x/request"
    found = [
        ask(Guard(inner, token=TOKEN, actions=actions), path, "POST", **headers, **bearer()).status
        for actions in (True, False)
    ]
    assert found == [status, 405]
    allowed = Guard(inner, token=TOKEN, actions=True)
    assert ask(allowed, path, "POST", x_muster_action="1").status == 401
    assert ask(allowed, "/api/list", "POST", x_muster_action="1", **bearer()).status == 405


@pytest.mark.parametrize("path", ["/", "/api/list", "/static/main.js", "/api/experiment/x/table"])
def test_nothing_is_shown_without_a_token(guard: Guard, path: str):
    answer = ask(guard, path)
    assert (answer.status, "inside" in answer.text) == (401, False)


@pytest.mark.parametrize("given", ["", "x", TOKEN[:-1], TOKEN + "t", "ü" * 10])
def test_a_wrong_token_is_refused(guard: Guard, given: str):
    assert (ask(guard, **bearer(given)).status, ask(guard, cookie=f"muster_page_2={given}").status) == (
        401,
        401,
    )


def test_a_link_works_once_and_becomes_a_cookie_that_scripts_cannot_read(guard: Guard):
    link = guard.new_link()
    first, second = (ask(guard, query=f"launch={link}") for _ in range(2))
    cookie = first.headers["set-cookie"]
    assert (first.status, first.headers["location"], second.status) == (303, "/", 401)
    assert ("HttpOnly" in cookie, "SameSite=Strict" in cookie) == (True, True)
    assert ask(guard, cookie=cookie.partition(";")[0]).text == "inside"


def test_the_cookie_is_a_secret_of_this_server_and_not_the_token(guard: Guard):
    cookie = ask(guard, query=f"launch={guard.new_link()}").headers["set-cookie"].partition(";")[0]
    next_server = Guard(inner, token=TOKEN)
    assert (TOKEN in cookie, ask(guard, cookie=f"muster_page_2={TOKEN}").status) == (False, 401)
    assert (ask(guard, cookie=cookie).status, ask(next_server, cookie=cookie).status) == (200, 401)


def test_a_stranger_keeps_no_connection(guard: Guard):
    assert (ask(guard).headers["connection"], "connection" in ask(guard, **bearer()).headers) == (
        "close",
        False,
    )


def test_a_used_link_still_opens_for_the_browser_that_used_it(guard: Guard):
    link = guard.new_link()
    cookie = ask(guard, query=f"launch={link}").headers["set-cookie"].partition(";")[0]
    assert ask(guard, query=f"launch={link}", cookie=cookie).status == 303


def test_a_link_leads_nowhere_else(guard: Guard):
    link = guard.new_link()
    answer = ask(guard, query=f"launch={link}&open=%0d%0aset-cookie:x%3d1%26//evil.example")
    assert answer.headers["location"].startswith("/#") and "\n" not in answer.headers["location"]


def test_requests_of_other_sites_are_refused(guard: Guard):
    crossing = {"sec_fetch_site": "cross-site", "sec_fetch_mode": "cors", "origin": "http://evil.example"}
    answer = ask(guard, "/api/list", **crossing, **bearer())
    assert (answer.status, "access-control-allow-origin" in answer.headers) == (403, False)


def test_no_answer_allows_other_origins(guard: Guard):
    answer = ask(guard, origin="http://localhost:9999", **bearer())
    assert [name for name in answer.headers if name.startswith("access-control")] == []


def test_content_and_long_headers_are_refused(guard: Guard):
    found = [
        ask(guard, content_length="5", **bearer()).status,
        ask(guard, transfer_encoding="chunked", **bearer()).status,
        ask(guard, x_long="x" * MAX_HEADER_BYTES, **bearer()).status,
    ]
    assert found == [413, 413, 431]


def test_the_policy_allows_no_inline_script_and_no_eval(guard: Guard):
    for answer in (ask(guard, **bearer()), ask(guard)):
        policy = answer.headers["content-security-policy"]
        assert ("unsafe" in policy, "default-src 'none'" in policy, "script-src 'self';" in policy) == (
            False,
            True,
            True,
        )


def test_the_token_is_kept_in_a_file_that_only_its_owner_reads(tmp_path: Path):
    file = tmp_path / "state" / "page-token"
    made = load_token(file)
    assert (stat.S_IMODE(os.stat(file).st_mode), load_token(file), len(made) >= 32) == (0o600, made, True)


def test_a_token_that_others_can_read_is_refused(tmp_path: Path):
    file = tmp_path / "page-token"
    load_token(file)
    file.chmod(0o644)
    with pytest.raises(StoreError, match="chmod 600"):
        load_token(file)
