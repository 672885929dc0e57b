"""Several processes are one hub: whichever answers, before and after a restart, and whatever another process has decided."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from tests.eras import ERAS, LEGACY, MODERN, OpenCall, ask, begin, call, cancel
from tests.hub import Address, Answer, key
from tests.processes import Site, free_port, own_database, site, wait_until


class Two(NamedTuple):
    """Two processes of one hub, the one on uvicorn, the other on daphne, and some tokens that nobody has used yet."""

    parley: Site
    one: Address
    other: Address
    agents: list[tuple[str, str]]
    unclaimed: list[str]

    def agent(self) -> tuple[str, str]:
        """A handle and its token."""
        return self.agents.pop()


@pytest.fixture(scope="module")
def parley(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("parley")
    with own_database(folder) as database_url:
        yield site(folder, public_url="http://127.0.0.1:8000", database_url=database_url)


@pytest.fixture(scope="module")
def two(parley: Site) -> Iterator[Two]:
    here, there = Address(free_port()), Address(free_port())
    with parley.served(port=here.port), parley.served(port=there.port, server="daphne"):
        handles = [f"agent-{n}" for n in range(20)]
        agents = list(zip(handles, parley.agents(handles), strict=True))
        yield Two(parley, here, there, agents, parley.agents([None] * 8))


def wait_in(process: Address, token: str, **more: Any) -> OpenCall:
    """An open wait, once the process has it and hears what others ring."""
    before = open_waits(process)
    waiting = OpenCall(process, token, "wait_for_messages", {"timeout_s": 50}, **more)
    wait_until(lambda: open_waits(process) == before + 1, "the wait is open")
    wait_until(lambda: process.request("GET", "/readyz").json["doorbell"] == "listening", "the process hears others")
    return waiting


def open_waits(process: Address) -> int:
    number: int = process.request("GET", "/readyz").json["open_waits"]
    return number


def code(answer: Answer) -> tuple[int, str]:
    return answer.status, answer.json["error"]["data"]["code"]


def rotate(parley: Site, token: str) -> str:
    """Another token for the connection of this one, made in a process of its own."""
    script = (
        "from agents.connections.credentials import hash_token, rotate_token\n"
        "from agents.connections.models import Connection\n"
        f"print(rotate_token(connection=Connection.objects.get(token_hash=hash_token({token!r}))))"
    )
    return parley.shell(script).strip()


# --- Any process, at any time ---------------------------------------------------------------------------------------


@pytest.mark.fault("M1")
@pytest.mark.parametrize("era", ERAS)
def test_a_client_that_began_at_one_process_goes_on_at_another(two, era):
    handle, token = f"m1-{era}", two.unclaimed.pop()
    begin(two.one, era, token)
    assert call(two.other, era, token, "claim_connected_profile", handle=handle)["created"]
    assert call(two.one, era, token, "whoami")["handle"] == handle
    call(two.other, era, token, "create_channel", name=f"of-{era}")
    call(two.one, era, token, "send_channel_message", channel=f"of-{era}", body="hi", idempotency_key=key())
    (message,) = call(two.other, era, token, "read_channel", channel=f"of-{era}")["messages"]
    assert (message["body"], message["sender"]["handle"]) == ("hi", handle)


@pytest.mark.fault("M1")
@pytest.mark.parametrize("server", ["uvicorn", "daphne"])
def test_a_client_goes_on_after_a_restart_as_if_nothing_had_been(parley, server):
    token, port = parley.token("owner", "--handle", f"restarted-{server}"), free_port()
    process = Address(port)
    with parley.served(port=port, server=server):
        begin(process, LEGACY[0], token)
        assert call(process, LEGACY[0], token, "whoami")["handle"] == f"restarted-{server}"
    with parley.served(port=port, server=server):
        # As real clients do: with the session id that some other server might have given them, and without a new start.
        answer = ask(process, LEGACY[0], "tools/list", token=token, headers={"Mcp-Session-Id": "from-before"})
        assert answer.status == 200
        assert call(process, LEGACY[0], token, "whoami")["handle"] == f"restarted-{server}"
        assert call(process, MODERN, token, "wait_for_messages", timeout_s=0)["messages"] == []


# --- The doorbell between them --------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["there", "back"])
def test_a_send_through_one_process_wakes_a_wait_in_the_other(two, way):
    """Not the look that a wait takes by itself: that comes after 25 s only."""
    one, other = (two.one, two.other) if way == "there" else (two.other, two.one)
    (_, alice), (bob, waits) = two.agent(), two.agent()
    waiting = wait_in(other, waits)
    call(one, LEGACY[0], alice, "send_agent_message", to=bob, body="wake up", idempotency_key=key())
    assert [m["body"] for m in waiting.result()["messages"]] == ["wake up"]


@pytest.mark.fault("M3")
@pytest.mark.parametrize("way", ["there", "back"])
def test_a_cancellation_that_reaches_one_process_ends_the_wait_in_the_other(two, way):
    one, other = (two.one, two.other) if way == "there" else (two.other, two.one)
    (handle, token), (_, sender) = two.agent(), two.agent()
    ghost = wait_in(other, token, request_id="call-1")
    assert cancel(one, token, "call-1").status == 202
    assert ghost.result()["messages"] == []
    call(one, LEGACY[0], sender, "send_agent_message", to=handle, body="for the next", idempotency_key=key())
    (message,) = call(other, LEGACY[0], token, "wait_for_messages", timeout_s=0)["messages"]
    assert (message["body"], message["redelivered"]) == ("for the next", False)


# --- Credentials ----------------------------------------------------------------------------------------------------


@pytest.mark.fault("X1")
@pytest.mark.parametrize("way", ["one", "other"])
def test_a_token_revoked_by_a_command_ends_its_open_wait_and_is_refused_at_once(two, way):
    process = two.one if way == "one" else two.other
    handle, token = two.agent()
    waiting = wait_in(process, token)
    # The process has just looked the token up and could still remember it.
    assert call(process, LEGACY[0], token, "whoami")["handle"] == handle
    two.parley.manage("revoke_connection", token[:12])
    assert code(waiting.answer()) == (401, "token_revoked")
    for tool in ("whoami", "wait_for_messages"):
        answer = ask(process, LEGACY[0], "tools/call", {"name": tool, "arguments": {}}, token=token)
        assert code(answer) == (401, "token_revoked")


@pytest.mark.fault("X1")
@pytest.mark.parametrize("way", ["one", "other"])
def test_a_token_rotated_elsewhere_ends_its_open_wait_and_only_the_new_one_goes_on(two, way):
    process = two.one if way == "one" else two.other
    handle, token = two.agent()
    waiting = wait_in(process, token)
    assert call(process, LEGACY[0], token, "whoami")["handle"] == handle
    fresh = rotate(two.parley, token)
    assert code(waiting.answer()) == (401, "invalid_token")
    for tool, arguments in [
        ("whoami", {}),
        ("wait_for_messages", {}),
        ("claim_connected_profile", {"handle": "thief"}),
    ]:
        answer = ask(process, LEGACY[0], "tools/call", {"name": tool, "arguments": arguments}, token=token)
        assert code(answer) == (401, "invalid_token")
    assert call(process, LEGACY[0], fresh, "whoami")["handle"] == handle


@pytest.mark.fault("X1")
@pytest.mark.parametrize("how", ["revoked", "rotated"])
@pytest.mark.parametrize("acting", [True, False], ids=["acting", "unclaimed"])
def test_a_token_that_ended_elsewhere_claims_nothing_any_more(two, how, acting):
    token = two.agent()[1] if acting else two.unclaimed.pop()
    # The process remembers it, if it acts as a profile.
    answer = ask(two.one, LEGACY[0], "tools/call", {"name": "whoami"}, token=token)
    assert answer.json["result"]["isError"] == (not acting)
    if how == "revoked":
        two.parley.manage("revoke_connection", token[:12])
    else:
        rotate(two.parley, token)
    claim = {"name": "claim_connected_profile", "arguments": {"handle": f"too-late-{how}-{acting}".lower()}}
    assert ask(two.one, LEGACY[0], "tools/call", claim, token=token).status == 401
    assert call(two.one, LEGACY[0], two.agent()[1], "list_peers", query="too-late")["peers"] == []
