"""Pages for people: the start page, what a browser is shown when something is wrong, and how a hub says how it is."""

from __future__ import annotations

import os
import re
import secrets
import socket
import warnings
from collections.abc import Iterator
from contextlib import closing, contextmanager
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.contrib.auth import get_user_model
from django.http import HttpRequest, HttpResponse
from django.test import AsyncClient, Client
from django.urls import path

from config import urls
from messaging.doorbell import doorbell
from tests.hub import Address, eventually
from tests.processes import ROOT, Site, free_port

POLICY = {
    "default-src 'none'",
    "script-src 'self'",
    "style-src 'self'",
    "img-src 'self' data:",
    "font-src 'self'",
    "connect-src 'self'",
    "form-action 'self'",
    "base-uri 'none'",
    "frame-ancestors 'none'",
}


class Page(HTMLParser):
    """What a page consists of: its elements with their attributes, and its text without marks."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.text = ""
        self.feed(source)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {name: value or "" for name, value in attrs}))

    def handle_data(self, data: str) -> None:
        self.text += data

    def all(self, *tags: str) -> list[tuple[str, dict[str, str]]]:
        return [element for element in self.elements if element[0] in tags]

    def references(self) -> set[str]:
        """The addresses of this hub that it links or loads."""
        found = {a.get("href") or a.get("src") or "" for _, a in self.all("a", "link", "script", "img")}
        return {address.partition("#")[0] for address in found if address.startswith("/")}


def get(address: str, browser: Client | None = None, status: int = 200) -> Page:
    answer = (browser or Client()).get(address)
    assert answer.status_code == status
    return Page(answer.content.decode())


# --- The start page -------------------------------------------------------------------------------------------------


def test_the_start_page_shows_a_visitor_the_lines_for_each_client_with_a_token_to_be_filled_in():
    shown = get("/").text
    for line in (
        'claude mcp add --transport http parley http://127.0.0.1:8000/mcp --header "Authorization: Bearer prl_YOUR_TOKEN"',
        "export PARLEY_TOKEN=prl_YOUR_TOKEN\n",
        "codex mcp add parley --url http://127.0.0.1:8000/mcp --bearer-token-env-var PARLEY_TOKEN",
        'default_tools_approval_mode = "approve"',
        'curl -H "Authorization: Bearer prl_YOUR_TOKEN" "http://127.0.0.1:8000/api/v1/inbox?timeout_s=50"',
        "manage.py connect_agent --owner YOUR_ACCOUNT --handle alice",
    ):
        assert line in shown


@pytest.mark.django_db
def test_the_start_page_asks_the_database_nothing(django_assert_num_queries):
    browser = Client()
    browser.force_login(get_user_model().objects.create_user("anna"))
    with django_assert_num_queries(0):
        get("/", browser)


def test_the_start_page_takes_no_form():
    assert Client().post("/").status_code == 405


def test_all_that_the_start_page_links_and_loads_is_there(hub):
    found = get("/").references()
    assert {"/admin/", "/api/docs", "/readyz", "/static/parley.css", "/static/favicon.svg"} <= found
    for address in found:
        assert hub.request("GET", address).status in {200, 302}, address


# --- All pages ------------------------------------------------------------------------------------------------------

OUR_PAGES = [("/", 200), ("/nothing-is-here", 404)]
ADMIN_PAGES = [
    "/admin/",
    "/admin/messaging/profile/",
    "/admin/messaging/message/",
    "/admin/connections/connection/",
    "/admin/auth/user/add/",
    "/admin/password_change/",
]


@pytest.mark.parametrize(("address", "status"), OUR_PAGES)
def test_a_page_can_be_read_without_looking(address, status):
    shown = get(address, status=status)
    assert [a["lang"] for _, a in shown.all("html")] == ["en"]
    assert [len(shown.all(tag)) for tag in ("title", "header", "nav", "main", "footer", "h1")] == [1] * 6
    # The first thing one can go to leads past the header.
    assert shown.all("a")[0][1]["href"] == "#" + shown.all("main")[0][1]["id"]
    levels = [int(tag[1]) for tag, _ in shown.all("h1", "h2", "h3", "h4", "h5", "h6")]
    assert all(after <= before + 1 for before, after in pairwise(levels))
    ids = [a["id"] for _, a in shown.elements if "id" in a]
    assert len(set(ids)) == len(ids)
    named = [name for _, a in shown.elements for name in a.get("aria-labelledby", "").split()]
    assert set(named) <= set(ids)
    assert all("alt" in a for _, a in shown.all("img"))
    assert ("meta", {"name": "viewport", "content": "width=device-width, initial-scale=1"}) in shown.elements


@pytest.mark.parametrize(("address", "status"), [*OUR_PAGES, *((a, 200) for a in ADMIN_PAGES), ("/api/docs", 200)])
@pytest.mark.django_db
def test_a_page_has_nothing_inline_and_forbids_it(address, status):
    browser = Client()
    browser.force_login(get_user_model().objects.create_superuser("olga"))
    answer = browser.get(address)
    assert answer.status_code == status
    assert set(answer["Content-Security-Policy"].split("; ")) == POLICY
    shown = Page(answer.content.decode())
    assert shown.all("style") == []
    for tag, attributes in shown.elements:
        assert tag != "script" or attributes.get("src", "").startswith(("/static/", "/admin/jsi18n/")), attributes
        assert not [name for name in attributes if name == "style" or name.startswith("on")], (tag, attributes)
    assert [a["href"] for tag, a in shown.all("link") if a.get("rel") == "icon"] == ["/static/favicon.svg"]
    assert "Parley" in shown.text


@pytest.mark.django_db
def test_the_admin_bears_the_name_of_the_hub():
    browser = Client()
    assert "Log in | Parley" in get("/admin/login/", browser).text
    browser.force_login(get_user_model().objects.create_superuser("olga"))
    assert "For operators | Parley" in get("/admin/", browser).text


def luminance(colour: str) -> float:
    def linear(part: str) -> float:
        value = int(part, 16) / 255
        return value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4

    red, green, blue = (linear(colour[i : i + 2]) for i in (1, 3, 5))
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    """As WCAG 2 defines it."""
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_text_stands_out_from_its_ground_by_what_wcag_aa_asks(scheme):
    style = (ROOT / "static" / "parley.css").read_text()
    pairs = re.findall(r"--([\w-]+): light-dark\((#\w{6}), (#\w{6})\);", style)
    colours = {name: light if scheme == "light" else dark for name, light, dark in pairs}
    assert len(colours) == style.count("light-dark(")
    on_grounds = [(text, ground) for text in ("text", "quiet", "accent") for ground in ("ground", "surface", "code")]
    for text, ground in [*on_grounds, ("text", "accent-quiet"), ("on-accent", "accent")]:
        assert contrast(colours[text], colours[ground]) >= 4.5, (text, ground)


# --- Static files ---------------------------------------------------------------------------------------------------


def test_static_files_are_served_from_where_they_lie_without_a_warning(hub):
    answer = hub.request("GET", "/static/admin/css/base.css")
    assert (answer.status, answer.headers["content-type"]) == (200, 'text/css; charset="utf-8"')
    assert int(answer.headers["content-length"]) == len(answer.body) > 10_000
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        again = async_to_sync(AsyncClient().get)("/static/parley.css")
        assert again.content == (ROOT / "static" / "parley.css").read_bytes()


def test_a_static_file_that_the_browser_has_is_not_sent_again(hub):
    first = hub.request("GET", "/static/parley.css")
    again = hub.request("GET", "/static/parley.css", headers={"If-None-Match": first.headers["etag"]})
    assert (again.status, again.body) == (304, b"")


# --- When something is wrong ----------------------------------------------------------------------------------------


def fails(request: HttpRequest) -> HttpResponse:
    raise RuntimeError("a secret of the inside")


urlpatterns = [path("fails", fails), *urls.urlpatterns]


@pytest.mark.urls(__name__)
def test_a_page_that_fails_says_so_and_shows_nothing_of_the_inside():
    browser = Client(raise_request_exception=False)
    shown = get("/fails", browser, status=500)
    assert "The hub failed to do this" in shown.text
    assert "secret" not in shown.text
    assert "Traceback" not in shown.text


def test_an_address_without_a_page_leads_to_the_start_page():
    shown = get("/nothing-is-here", status=404)
    assert "There is nothing here" in shown.text
    assert "/" in shown.references()


def test_a_form_without_its_protection_is_refused_with_a_page():
    browser = Client(enforce_csrf_checks=True)
    answer = browser.post("/admin/login/", {"username": "olga", "password": "x"})
    assert answer.status_code == 403
    assert "This form is no longer valid" in answer.content.decode()


def test_a_wrong_host_is_refused_with_a_page_that_names_it_nowhere(hub):
    answer = hub.request("GET", "/", headers={"Host": "rebound.example"})
    assert answer.status == 400
    assert b"This request is not understood" in answer.body
    assert b"rebound" not in answer.body


# --- How the hub is -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("address", ["/healthz", "/readyz"])
def test_health_is_only_read(hub, address):
    assert hub.request("HEAD", address).status == 200
    refused = hub.request("POST", address, {})
    assert (refused.status, refused.headers["allow"]) == (405, "GET, HEAD")


def test_a_hub_that_works_is_alive_and_ready_and_counts_its_waits(hub, agent):
    assert hub.request("GET", "/healthz").json == {"status": "alive"}
    waits = [agent("alice").waiting(timeout_s=50), agent("bob").waiting(timeout_s=50)]

    def state() -> Any:
        answer = hub.request("GET", "/readyz")
        assert answer.status == 200
        return answer.json

    # On PostgreSQL the first wait makes the connection that listens.
    eventually(lambda: state()["doorbell"] == "listening")
    assert state() == {"status": "ready", "database": "answers", "doorbell": "listening", "open_waits": len(waits)}


def test_a_process_that_is_about_to_stop_is_not_ready_but_alive(hub):
    doorbell.drain()
    try:
        answer = hub.request("GET", "/readyz")
        assert (answer.status, answer.json["status"]) == (503, "draining")
        assert hub.request("GET", "/healthz").status == 200
    finally:
        doorbell.draining = False


@contextmanager
def database(sort: str, folder: Path) -> Iterator[str]:
    """The URL of a database that is of no use."""
    if sort == "without tables":
        yield f"sqlite:///{folder}/empty.sqlite3"
        return
    with closing(socket.create_server(("127.0.0.1", 0))) as silent:
        port = silent.getsockname()[1] if sort == "silent" else free_port()
        yield f"postgres://parley:a-secret-password@127.0.0.1:{port}/parley"


@pytest.mark.mutant("config/serving/on_uvicorn.py", "await store.close_pool()", "pass")
@pytest.mark.parametrize("sort", ["gone", "silent", "without tables"])
def test_a_hub_whose_database_does_not_answer_is_alive_but_not_ready(sort, tmp_path):
    port = free_port()
    with database(sort, tmp_path) as url:
        environment = {
            "PATH": os.environ["PATH"],
            "PARLEY_ENV_FILE": os.devnull,
            "SECRET_KEY": secrets.token_urlsafe(48),
            "PUBLIC_URL": f"http://127.0.0.1:{port}",
            "DATABASE_URL": url,
        }
        with Site(environment).served(port=port) as process:
            hub = Address(port)
            assert hub.request("GET", "/healthz", timeout_s=5).status == 200
            answer = hub.request("GET", "/readyz", timeout_s=5)
    assert answer.status == 503
    assert answer.json == {"status": "unavailable", "database": "unavailable", "doorbell": "idle", "open_waits": 0}
    # It also stops when told to, although its pool is still trying.
    assert process.returncode == 0
