"""The tools as an MCP client meets them: the list, each one reached, pages that no client cuts, answers that tell the truth."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import pytest
from django.contrib.auth import get_user_model

from messaging.models import Message
from messaging.profiles import ensure_person
from tests.eras import LEGACY, MODERN, ask, begin, call
from tests.hub import key

# DESIGN, section 5: the published names, and for each whether it only reads and whether it reaches an open world.
TOOLS = {
    "claim_connected_profile": ("writes", "closed"),
    "whoami": ("reads", "closed"),
    "list_peers": ("reads", "closed"),
    "send_agent_message": ("writes", "open"),
    "send_channel_message": ("writes", "open"),
    "preview_send": ("reads", "closed"),
    "ask_person": ("writes", "closed"),
    "wait_for_messages": ("reads", "closed"),
    "acknowledge": ("writes", "closed"),
    "inbox_peek": ("reads", "closed"),
    "message_status": ("reads", "closed"),
    "read_message": ("reads", "closed"),
    "edit_message": ("writes", "closed"),
    "retract_message": ("writes", "closed"),
    "list_channels": ("reads", "closed"),
    "read_channel": ("reads", "closed"),
    "read_thread": ("reads", "closed"),
    "search_messages": ("reads", "closed"),
    "create_channel": ("writes", "closed"),
    "join_channel": ("writes", "closed"),
    "leave_channel": ("writes", "closed"),
    "set_channel_policy": ("writes", "closed"),
}
# Those whose answer may be a part of something longer, with the field that holds the part.
LISTS = {
    "list_peers": "peers",
    "wait_for_messages": "messages",
    "inbox_peek": "messages",
    "read_message": "body",
    "list_channels": "channels",
    "read_channel": "messages",
    "read_thread": "messages",
    "search_messages": "messages",
}
# Real clients hide or cut more; and descriptions beyond 2 KB.
MAX_PAGE_BYTES = 36_000
MAX_DESCRIPTION_BYTES = 2_048


@pytest.fixture(scope="module")
def tools(running_hub: Any) -> dict[str, Any]:
    """The tools as they are listed."""
    return {tool["name"]: tool for tool in ask(running_hub, MODERN, "tools/list").json["result"]["tools"]}


# --- The list -------------------------------------------------------------------------------------------------------


@pytest.mark.fault("M12")
def test_the_tools_are_those_of_the_published_contract_in_a_fixed_order(running_hub, tools):
    assert list(tools) == [t["name"] for t in ask(running_hub, LEGACY[0], "tools/list").json["result"]["tools"]]
    assert set(tools) == set(TOOLS)


@pytest.mark.parametrize("name", TOOLS)
def test_a_tool_says_with_all_hints_whether_it_writes_and_whom_it_reaches(tools, name):
    """Clients take the worse value of a hint that is missing, and ask before each call."""
    hints = tools[name]["annotations"]
    assert {h: hints[h] for h in ("readOnlyHint", "destructiveHint", "openWorldHint")} == {
        "readOnlyHint": TOOLS[name][0] == "reads",
        "destructiveHint": False,
        "openWorldHint": TOOLS[name][1] == "open",
    }
    assert tools[name]["title"]


@pytest.mark.fault("M7")
@pytest.mark.parametrize("name", TOOLS)
def test_a_description_fits_into_what_clients_show(tools, name):
    assert 20 <= len(tools[name]["description"].encode()) <= MAX_DESCRIPTION_BYTES
    for field, argument in tools[name]["inputSchema"]["properties"].items():
        assert 10 <= len(argument["description"]) <= 300, field


@pytest.mark.fault("M7")
@pytest.mark.parametrize("name", TOOLS)
def test_each_limit_of_an_argument_stands_in_its_description(tools, name):
    """Codex strips limits and patterns from a schema before its model sees it."""
    for field, argument in tools[name]["inputSchema"]["properties"].items():
        told = argument["description"].replace(",", "")
        for limit in ("maximum", "maxLength", "maxItems", "minLength", "minItems"):
            if argument.get(limit, 1) > 1:
                assert re.search(rf"\b{argument[limit]}\b", told), (field, limit)
        if "pattern" in argument:
            assert "2 to 31 characters" in told, field
        if argument.get("default") not in (None, "", [], False, 0):
            # What is used when nothing is given is stripped too, so it has to be a sensible value, within its limits.
            assert argument["minimum"] <= argument["default"] <= argument["maximum"], field


@pytest.mark.fault("M7")
@pytest.mark.parametrize("era", [MODERN, LEGACY[0]])
def test_the_instructions_fit_and_their_beginning_alone_tells_how_to_take_part(running_hub, era):
    instructions = begin(running_hub, era)["instructions"]
    assert len(instructions.encode()) <= MAX_DESCRIPTION_BYTES
    shown = instructions.partition("\n\n")[0]
    assert len(shown) <= 250
    for needed in ("claim_connected_profile", "send_agent_message", "wait_for_messages", "after_sequence"):
        assert needed in shown
    named = set(re.findall(r"\b[a-z]+_[a-z_]+\b", instructions)) - {
        "after_sequence",
        "idempotency_key",
        "thread_root_id",
    }
    assert named <= set(TOOLS)


@pytest.mark.parametrize("name", TOOLS)
def test_an_input_schema_is_plain(tools, name):
    """One type for each argument, no nulls, nothing unknown: what every client's model can read."""
    schema = tools[name]["inputSchema"]
    assert (schema["type"], schema["additionalProperties"]) == ("object", False)
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.Draft202012Validator.check_schema(tools[name]["outputSchema"])
    assert "null" not in json.dumps(schema)
    assert "$ref" not in json.dumps(schema)


# --- Each one reached -----------------------------------------------------------------------------------------------


def least_arguments(agent: Callable[..., Any]) -> tuple[Any, dict[str, dict[str, Any]]]:
    """An agent, and the least arguments with which each tool does something for it."""
    owner, _ = get_user_model().objects.get_or_create(username="owner")
    person = ensure_person(owner)
    alice, bob = agent("alice"), agent("bob")
    sent = alice.send("bob", "one")["message_id"]
    alice.call("create_channel", name="builds")
    bob.call("create_channel", name="tests")
    bob.send("alice", "two")
    bob.send("alice", "three")
    return alice, {
        "claim_connected_profile": {"handle": "alice"},
        "whoami": {},
        "list_peers": {},
        "send_agent_message": {"to": "bob", "body": "hi", "idempotency_key": key()},
        "send_channel_message": {"channel": "builds", "body": "hi", "idempotency_key": key()},
        "preview_send": {"to": "bob", "body": "hi"},
        "ask_person": {
            "to": person.handle,
            "question": "Go on?",
            "options": ["yes", "no"],
            "idempotency_key": key(),
        },
        "wait_for_messages": {},
        "acknowledge": {"through_sequence": 1},
        "inbox_peek": {},
        "message_status": {"message_id": sent},
        "read_message": {"message_id": sent},
        "edit_message": {"message_id": sent, "body": "won"},
        "retract_message": {"message_id": sent},
        "list_channels": {},
        "read_channel": {"channel": "builds"},
        "read_thread": {"thread_root_id": sent},
        "search_messages": {"query": "two"},
        "create_channel": {"name": "deploys"},
        "join_channel": {"name": "tests"},
        "leave_channel": {"name": "tests"},
        "set_channel_policy": {"name": "builds", "answers_agents": False},
    }


@pytest.mark.fault("M12")
@pytest.mark.parametrize("era", [MODERN, LEGACY[1]])
def test_each_listed_tool_is_reached_by_its_least_call_and_answers_as_its_schema_says(hub, agent, tools, era):
    alice, least = least_arguments(agent)
    assert set(least) == set(tools)
    for name, arguments in least.items():
        assert set(arguments) >= set(tools[name]["inputSchema"].get("required", []))
        result = call(hub, era, alice.token, name, **arguments)
        jsonschema.validate(result, tools[name]["outputSchema"])


@pytest.mark.parametrize("era", [MODERN, LEGACY[0]])
def test_structured_and_text_content_are_the_same_json_in_results_and_refusals(hub, agent, era):
    alice, least = least_arguments(agent)
    for name, arguments in {**least, "send_agent_message": {"to": "nobody"}, "read_channel": {"channel": "x"}}.items():
        answer = ask(hub, era, "tools/call", {"name": name, "arguments": arguments}, token=alice.token)
        (content,) = answer.json["result"]["content"]
        assert content["type"] == "text"
        assert json.loads(content["text"]) == answer.json["result"]["structuredContent"]


# --- Pages ----------------------------------------------------------------------------------------------------------

# Bodies whose JSON is much longer than their number of characters, and one that is not.
BULKY = {
    "letters": "x" * 6000,
    "emoji": "😀" * 3000,
    "quotes": '"\\' * 2500,
    "controls": "\x01" * 2000,
    "lines": "\n" * 5000,
}


def renderings(answer: Any) -> list[bytes]:
    """Each rendering of the result that a client may show: structured and text, or the body of an HTTP answer."""
    if "result" not in answer.json:
        return [answer.body]
    result = answer.json["result"]
    return [
        result["content"][0]["text"].encode(),
        json.dumps(result["structuredContent"], ensure_ascii=False).encode(),
        json.dumps(result["structuredContent"], ensure_ascii=False, separators=(",", ":")).encode(),
    ]


@pytest.mark.fault("M6")
@pytest.mark.parametrize("kind", BULKY)
def test_a_page_ends_before_clients_cut_it_and_says_that_there_is_more(agent, door, kind):
    alice, bob = agent("alice"), agent("bob")
    sent = [f"{n} {BULKY[kind]}" for n in range(12)]
    for body in sent:
        bob.send("alice", body)
    got: list[str] = []
    after, has_more = None, True
    while has_more:
        page = alice.wait(after_sequence=after, limit=50) if after else alice.wait(limit=50)
        assert all(len(rendering) < MAX_PAGE_BYTES for rendering in renderings(alice.answers[-1]))
        assert page["messages"]
        got += [m["body"] for m in page["messages"]]
        assert all(m["body_cut"] is None for m in page["messages"])
        after, has_more = page["after_sequence"], page["has_more"]
        assert has_more == (len(got) < len(sent))
    assert got == sent


@pytest.mark.fault("M6")
@pytest.mark.parametrize("kind", ["controls", "quotes", "emoji"])
def test_a_body_that_fills_more_than_a_page_comes_alone_and_cut_with_a_flag_and_its_rest_can_be_read(agent, door, kind):
    alice, bob = agent("alice"), agent("bob")
    whole = {"controls": "\x02", "quotes": '"\\', "emoji": "😀🏽"}[kind]
    whole = whole * (20_000 // len(whole))
    bob.send("alice", whole)
    bob.send("alice", "after it")
    page = alice.wait(limit=50)
    assert all(len(rendering) < MAX_PAGE_BYTES for rendering in renderings(alice.answers[-1]))
    (message,) = page["messages"]
    assert page["has_more"]
    assert message["body_cut"] == {"shown": len(message["body"]), "total": 20_000}
    read = message["body"]
    while True:
        part = alice.call("read_message", message_id=message["message_id"], offset=len(read))
        assert all(len(rendering) < MAX_PAGE_BYTES for rendering in renderings(alice.answers[-1]))
        assert part["body"]
        read += part["body"]
        if not part["has_more"]:
            break
    assert read == whole
    assert alice.bodies(after_sequence=page["after_sequence"]) == ["after it"]


@pytest.mark.fault("M6")
@pytest.mark.parametrize("tool", ["inbox_peek", "read_channel", "read_thread", "search_messages"])
def test_every_other_page_of_messages_keeps_to_the_same_size(agent, door, tool):
    alice, bob = agent("alice"), agent("bob")
    root = bob.send("alice", "word " + "\x03" * 2000)["message_id"]
    for _ in range(9):
        bob.send("alice", "word " + "\x03" * 2000, thread_root_id=root)
    arguments = {
        "inbox_peek": {},
        "read_channel": {"channel": "@bob"},
        "read_thread": {"thread_root_id": root},
        "search_messages": {"query": "word"},
    }[tool]
    page = alice.call(tool, **arguments)
    assert all(len(rendering) < MAX_PAGE_BYTES for rendering in renderings(alice.answers[-1]))
    assert 1 <= len(page["messages"]) < 10
    assert page["has_more"]


@pytest.mark.fault("M6")
def test_a_body_of_the_longest_length_that_fits_is_not_cut(agent, door):
    alice, bob = agent("alice"), agent("bob")
    bob.send("alice", "y" * 20_000)
    (message,) = alice.wait()["messages"]
    assert (message["body"], message["body_cut"]) == ("y" * 20_000, None)


# --- Parts and wholes -----------------------------------------------------------------------------------------------


@pytest.mark.fault("M10")
@pytest.mark.parametrize("name", TOOLS)
def test_each_list_says_whether_it_is_only_a_part(tools, name):
    schema = tools[name]["outputSchema"]
    pages = {
        f for f, s in schema["properties"].items() if f in {"messages", "peers", "channels"} and s["type"] == "array"
    }
    assert bool(pages) == (LISTS.get(name) in {"messages", "peers", "channels"})
    if name in LISTS:
        assert schema["properties"]["has_more"]["type"] == "boolean"
        assert {"has_more", LISTS[name]} <= set(schema["required"])


@pytest.mark.fault("M10")
def test_a_list_read_in_pages_of_one_is_whole_in_the_end_and_says_so_only_then(agent, door):
    alice, bob = agent("alice"), agent("bob")
    agent("carol")
    root = bob.send("alice", "word 1")["message_id"]
    for number in (2, 3):
        bob.send("alice", f"word {number}", thread_root_id=root)
    for name in ("aa", "bb", "cc"):
        alice.call("create_channel", name=name)

    def pages(tool: str, cursor: str, next_: Callable[[Any], Any], **arguments: Any) -> list[Any]:
        """All items, one page after the other; only the last may say that it is the last."""
        items: list[Any] = []
        page = alice.call(tool, limit=1, **arguments)
        while page["has_more"]:
            assert len(page[LISTS[tool]]) == 1
            items += page[LISTS[tool]]
            page = alice.call(tool, limit=1, **{**arguments, cursor: next_(page)})
        return items + page[LISTS[tool]]

    def bodies(messages: list[Any]) -> list[str]:
        return [m["body"] for m in messages]

    words = ["word 1", "word 2", "word 3"]
    assert [p["handle"] for p in pages("list_peers", "after", lambda p: p["peers"][-1]["handle"])] == ["bob", "carol"]
    named = [c["name"] for c in pages("list_channels", "after", lambda p: p["channels"][-1]["name"])]
    assert named == ["aa", "bb", "cc"]
    peeked = pages("inbox_peek", "after_sequence", lambda p: p["messages"][-1]["sequence"])
    assert bodies(peeked) == words
    thread = pages("read_thread", "after_channel_sequence", lambda p: p["after_channel_sequence"], thread_root_id=root)
    assert bodies(thread) == words
    channel = pages("read_channel", "before_channel_sequence", lambda p: p["before_channel_sequence"], channel="@bob")
    assert bodies(channel) == words[::-1]
    assert bodies(pages("search_messages", "offset", lambda p: p["offset"], query="word")) == words[::-1]
    assert bodies(pages("wait_for_messages", "after_sequence", lambda p: p["after_sequence"], timeout_s=0)) == words


# --- Done -----------------------------------------------------------------------------------------------------------


@pytest.mark.fault("M11")
def test_messages_are_marked_as_done_one_by_one_as_a_batch_or_up_to_a_place(agent, door):
    alice, bob = agent("alice"), agent("bob")
    ids = [bob.send("alice", str(n))["message_id"] for n in range(1, 7)]
    assert alice.call("acknowledge", message_ids=[ids[1]]) == {"acknowledged": 1, "remaining": 5}
    assert alice.call("acknowledge", message_ids=[ids[3], ids[5], ids[1]]) == {"acknowledged": 2, "remaining": 3}
    assert alice.bodies() == ["1", "3", "5"]
    assert alice.call("acknowledge", through_sequence=3) == {"acknowledged": 2, "remaining": 1}
    assert [m["body"] for m in alice.peek()["messages"]] == ["5"]
    assert alice.bodies(after_sequence=0) == ["5"]


@pytest.mark.fault("M11")
def test_nobody_marks_the_messages_of_another_as_done(agent, door):
    alice, bob, eve = agent("alice"), agent("bob"), agent("eve", owner="eve")
    ids = [bob.send("alice", "private")["message_id"]]
    assert eve.call("acknowledge", message_ids=ids) == {"acknowledged": 0, "remaining": 0}
    assert bob.call("acknowledge", message_ids=ids) == {"acknowledged": 0, "remaining": 0}
    assert alice.bodies() == ["private"]


@pytest.mark.fault("M11")
@pytest.mark.parametrize("count", [0, 101])
def test_a_batch_of_none_or_too_many_is_refused_with_the_limit(agent, door, count):
    alice, bob = agent("alice"), agent("bob")
    sent = bob.send("alice")["message_id"]
    refused = alice.refusal("acknowledge", message_ids=[sent] * count)
    assert (refused["code"], refused["limit"]) == ("invalid_argument", 100)
    assert len(alice.peek()["messages"]) == 1


# --- Answers tell the truth -----------------------------------------------------------------------------------------


@pytest.mark.fault("M9")
def test_what_is_too_long_is_refused_with_the_limit_and_never_cut_in_silence(agent, door):
    alice, bob = agent("alice"), agent("bob")
    message_id = bob.send("alice", "short")["message_id"]
    for tool, arguments in {
        "send_agent_message": {"to": "alice", "body": "z" * 20_001, "idempotency_key": key()},
        "edit_message": {"message_id": message_id, "body": "z" * 20_001},
    }.items():
        refused = bob.refusal(tool, **arguments)
        assert (refused["code"], refused["limit"]) == ("invalid_argument", 20_000)
        assert "20001" in refused["message"]
    assert alice.bodies() == ["short"]


@pytest.mark.fault("M9")
def test_a_write_says_what_it_has_changed(agent, door):
    alice, bob = agent(), agent("bob")
    assert (alice.claim("alice")["created"], alice.claim("alice")["created"]) == (True, False)
    same = {"to": "bob", "body": "once", "idempotency_key": key()}
    replayed = [alice.call("send_agent_message", **same)["replayed"] for _ in range(2)]
    assert replayed == [False, True]
    sent = bob.wait()["messages"][0]["message_id"]
    assert [bob.call("acknowledge", message_ids=[sent])["acknowledged"] for _ in range(2)] == [1, 0]
    assert alice.call("create_channel", name="builds")["member"]
    assert bob.call("join_channel", name="builds")["members"] == 2
    left = bob.call("leave_channel", name="builds")
    assert (left["member"], left["members"]) == (False, 1)
    edited = alice.call("edit_message", message_id=sent, body="twice")
    assert (edited["body"], bool(edited["edited_at"])) == ("twice", True)
    retracted = alice.call("retract_message", message_id=sent)
    assert (retracted["body"], bool(retracted["retracted_at"])) == ("", True)


@pytest.mark.fault("M9")
def test_the_code_of_a_refusal_names_the_remedy_and_its_status_the_class(agent, settings):
    """The same fault, told by HTTP status over HTTP and by code everywhere; a fault of the caller is never the hub's (500)."""
    alice = agent("alice", door="http")
    reader = agent("alice", door="http", can_write=False)
    stranger, unclaimed = agent("carol", door="http"), agent(door="http")
    stranger.token = "prl_" + "0" * 43
    some_id = "00000000-0000-4000-8000-000000000000"
    cases: list[tuple[Any, str, dict[str, Any], int, str]] = [
        (stranger, "whoami", {}, 401, "invalid_token"),
        (unclaimed, "whoami", {}, 403, "no_profile"),
        (reader, "create_channel", {"name": "builds"}, 403, "insufficient_scope"),
        (alice, "create_channel", {"name": "B"}, 400, "invalid_channel_name"),
        (alice, "create_channel", {}, 400, "invalid_argument"),
        (alice, "message_status", {"message_id": some_id}, 404, "unknown_message"),
        (alice, "send_agent_message", {"to": "bobb", "body": "x", "idempotency_key": key()}, 404, "unknown_handle"),
        (alice, "send_agent_message", {"to": "alice", "body": "x", "idempotency_key": key()}, 400, "self_send"),
        (alice, "wait_for_messages", {"after_sequence": 7, "timeout_s": 0}, 409, "cursor_ahead"),
        (alice, "read_channel", {"channel": "no-such"}, 404, "unknown_channel"),
    ]
    for who, tool, arguments, status, code in cases:
        through_http = who.refusal(tool, **arguments)
        assert (who.answers[-1].status, through_http["code"]) == (status, code), tool
        through_mcp = ask(who.hub, LEGACY[0], "tools/call", {"name": tool, "arguments": arguments}, token=who.token)
        if status == 401:
            assert (through_mcp.status, through_mcp.json["error"]["data"]["code"]) == (401, code)
        else:
            result = through_mcp.json["result"]
            assert (through_mcp.status, result["isError"], result["structuredContent"]["code"]) == (200, True, code)
    settings.RATE_LIMIT_PER_MINUTE = 1
    alice.call("whoami")
    limited = alice.refusal("whoami")
    assert (alice.answers[-1].status, limited["code"]) == (429, "rate_limited")
    assert int(alice.answers[-1].headers["retry-after"]) == limited["retry_after_s"] >= 1


@pytest.mark.fault("M9")
def test_a_fault_of_the_hub_is_one_and_tells_nothing_of_its_inside(agent, door):
    """What is stored was damaged behind the hub's back."""
    alice = agent("alice")
    agent("bob")
    same = {"to": "bob", "body": "x", "idempotency_key": key()}
    alice.call("send_agent_message", **same)
    Message.objects.update(receipt="not a receipt")
    refused = alice.refusal("send_agent_message", **same)
    assert refused.keys() == {"code", "message", "retry_after_s"}
    assert refused["code"] == "internal"
    assert alice.answers[-1].status == (500 if door == "http" else 200)
    assert alice.call("whoami")["handle"] == "alice"
