"""`/mcp` on the wire: the revisions, the order of the checks, what is refused and how, and what ends a wait."""

from __future__ import annotations

import base64
import http.client
import json
import socket
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from tests.eras import BOTH_TYPES, CAPABILITIES, ERAS, LEGACY, MODERN, VERSION, ask, begin, call, headers, message, meta
from tests.hub import Address, Answer, Hub, McpAgent, key

MEGABYTE = 1_048_576
STRANGE_VERSIONS = ["2024-11-05", "1999-01-01", "2026-07-28-draft", "latest", "\xb2"]


@pytest.fixture
def wire(running_hub: Hub) -> Address:
    """The server, for requests that leave nothing behind: without emptying the database."""
    return running_hub


@pytest.fixture
def still_answers(running_hub: Hub) -> Iterator[None]:
    """After whatever the test has sent, the next call works."""
    yield
    assert ask(running_hub, MODERN, "tools/list").status == 200


def refusal(answer: Answer) -> tuple[int, Any]:
    """The HTTP status and the code of a refusal: our own where there is one, else JSON-RPC's."""
    assert answer.headers["content-type"] == "application/json"
    error = answer.json["error"]
    assert error["message"]
    return answer.status, (error.get("data") or {}).get("code") or error["code"]


def post(hub: Address, body: Any, **more: Any) -> Answer:
    """A body as it is, from a legacy client."""
    return hub.request("POST", "/mcp", body, {"Content-Type": "application/json", **more})


def raw(hub: Address, *lines: bytes, body: bytes = b"") -> Answer:
    """A request written byte by byte."""
    with closing(socket.create_connection(("127.0.0.1", hub.port), timeout=5)) as connection:
        connection.sendall(b"\r\n".join([*lines, b"Host: 127.0.0.1", b"", b""]) + body)
        answer = http.client.HTTPResponse(connection)
        answer.begin()
        return Answer(answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read())


# --- Revisions ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("era", ERAS)
def test_a_client_of_each_revision_completes_a_conversation(hub, agent, era):
    alice, bob = agent(), agent("bob")
    begun = begin(hub, era)
    assert begun["capabilities"] == {"tools": {}}
    assert "claim_connected_profile" in begun["instructions"]
    listed = [tool["name"] for tool in ask(hub, era, "tools/list").json["result"]["tools"]]
    assert {"claim_connected_profile", "send_agent_message", "wait_for_messages"} <= set(listed)
    assert call(hub, era, alice.token, "claim_connected_profile", handle="alice")["created"]
    call(hub, era, alice.token, "send_agent_message", to="bob", body="there?", idempotency_key=key())
    assert bob.bodies() == ["there?"]
    bob.send("alice", "here.")
    page = call(hub, era, alice.token, "wait_for_messages", timeout_s=5)
    assert [m["body"] for m in page["messages"]] == ["here."]


@pytest.mark.parametrize("offered", [*LEGACY, "2024-11-05", "2026-07-28", "1.0", "", 1, None, ["2025-06-18"], {}])
def test_initialize_agrees_on_the_clients_revision_or_else_the_newest_legacy_one(wire, offered):
    answer = wire.rpc("initialize", {"protocolVersion": offered, "capabilities": {}})
    assert answer.status == 200
    assert answer.json["result"]["protocolVersion"] == (offered if offered in LEGACY else "2025-11-25")
    assert answer.json["result"]["serverInfo"]["name"] == "parley"


def test_a_modern_client_discovers_what_is_served(wire):
    result = ask(wire, MODERN, "server/discover").json["result"]
    assert result["supportedVersions"] == list(ERAS)
    assert result["resultType"] == "complete"
    assert (result["ttlMs"], result["cacheScope"]) == (300_000, "public")
    assert result["_meta"]["io.modelcontextprotocol/serverInfo"]["name"] == "parley"


def test_a_modern_list_of_tools_may_be_kept_and_is_the_legacy_one(wire):
    modern = ask(wire, MODERN, "tools/list").json["result"]
    legacy = ask(wire, LEGACY[0], "tools/list").json["result"]
    assert modern["tools"] == legacy["tools"]
    assert (modern["ttlMs"], modern["cacheScope"], modern["resultType"]) == (300_000, "public", "complete")
    assert legacy.keys() == {"tools"}


def test_ping_belongs_to_the_legacy_revisions(wire):
    assert ask(wire, LEGACY[0], "ping").json["result"] == {}
    assert refusal(ask(wire, MODERN, "ping")) == (404, -32601)


def test_no_session_is_opened_and_a_strange_one_is_nobodys_concern(hub, agent):
    answer = ask(hub, LEGACY[0], "tools/call", {"name": "whoami"}, token=agent("alice").token)
    assert "mcp-session-id" not in answer.headers
    again = ask(hub, LEGACY[0], "ping", headers={"Mcp-Session-Id": "of-another-server"})
    assert again.json["result"] == {}


@pytest.mark.fault("M8")
@pytest.mark.parametrize("accept", [BOTH_TYPES, "text/event-stream, application/json", "text/event-stream", "*/*"])
def test_whatever_a_client_accepts_it_gets_one_json_answer_and_never_a_stream(hub, agent, accept):
    """A notification starts no turn in any client, so there is no stream on which to send one."""
    answer = ask(
        hub, LEGACY[0], "tools/call", {"name": "whoami"}, token=agent("alice").token, headers={"Accept": accept}
    )
    assert answer.headers["content-type"] == "application/json"
    assert answer.json["result"]["structuredContent"]["handle"] == "alice"


@pytest.mark.fault("M8")
@pytest.mark.parametrize("era", ERAS)
def test_nothing_is_announced_by_notification_and_none_is_needed(hub, agent, era):
    """The capabilities promise none, and a client that never says `initialized` is served."""
    assert call(hub, era, agent("alice").token, "whoami")["handle"] == "alice"
    assert begin(hub, era)["capabilities"] == {"tools": {}}


@pytest.mark.parametrize("request_id", [0, -1, 10**100, "", "a" * 1000, "\ud800", "\0", "é😀"])
def test_an_odd_request_id_comes_back_as_it_was(wire, request_id):
    assert ask(wire, LEGACY[0], "ping", request_id=request_id).json["id"] == request_id


def test_the_same_request_id_may_come_again(hub, agent):
    alice = agent("alice")
    for _ in range(2):
        answer = ask(hub, LEGACY[0], "tools/call", {"name": "whoami"}, token=alice.token, request_id="same")
        assert answer.json["id"] == "same"
        assert answer.json["result"]["structuredContent"]["handle"] == "alice"


# --- The order of the checks ----------------------------------------------------------------------------------------

# Each request is wrong in this respect and in all that follow: the first one decides.
WRONG = ["host", "origin", "method", "media type", "size", "json", "revision", "unknown method", "token", "tool"]


def wrong_request(hub: Address, first: str) -> Answer:
    wrong = WRONG[WRONG.index(first) :]
    sent = headers(MODERN, "tools/call", "no_such_tool") | {"Content-Type": "application/json"}
    if "host" in wrong:
        sent["Host"] = "evil.example"
    if "origin" in wrong:
        sent["Origin"] = "https://evil.example"
    if "media type" in wrong:
        sent["Content-Type"] = "text/plain"
    if "revision" in wrong:
        sent["MCP-Protocol-Version"] = "1999-01-01"
    if "token" in wrong:
        sent["Authorization"] = "Bearer prl_unknown"
    body = message(MODERN, "tools/call", {"name": "no_such_tool", "arguments": {}})
    if "revision" in wrong:
        body["params"]["_meta"][VERSION] = "1999-01-01"
    if "unknown method" in wrong:
        body["method"] = sent["Mcp-Method"] = "tools/destroy"
    written = json.dumps(body).encode()
    if "json" in wrong:
        written += b"}"
    if "size" in wrong:
        written += b" " * MEGABYTE
    return hub.request("PUT" if "method" in wrong else "POST", "/mcp", written, sent)


@pytest.mark.parametrize(
    ("first", "expected"),
    [
        ("host", (403, "host_refused")),
        ("origin", (403, "origin_refused")),
        ("method", (405, "method_not_allowed")),
        ("media type", (415, "unsupported_media_type")),
        ("size", (413, "too_large")),
        ("json", (400, -32700)),
        ("revision", (400, -32022)),
        ("unknown method", (404, -32601)),
        ("token", (401, "invalid_token")),
        ("tool", (401, "unauthenticated")),
    ],
)
@pytest.mark.usefixtures("still_answers")
def test_the_checks_come_in_one_order_each_with_its_code(wire, first, expected):
    assert refusal(wrong_request(wire, first)) == expected


@pytest.mark.fault("M4")
@pytest.mark.parametrize("method", ["GET", "DELETE", "PUT", "PATCH", "OPTIONS"])
@pytest.mark.usefixtures("still_answers")
def test_every_method_but_post_is_answered_at_once_and_for_good(wire, method):
    answer = wire.request(method, "/mcp", None, {"Accept": "text/event-stream"}, timeout_s=5)
    assert refusal(answer) == (405, "method_not_allowed")
    assert answer.headers["allow"] == "POST"


@pytest.mark.fault("M4")
def test_a_client_with_a_token_opens_no_stream_either(hub, agent):
    sent = {"Accept": "text/event-stream", "Authorization": f"Bearer {agent('alice').token}"}
    assert refusal(hub.request("GET", "/mcp", None, sent, timeout_s=5)) == (405, "method_not_allowed")


@pytest.mark.fault("M4")
def test_head_is_refused_without_a_body(wire):
    answer = wire.request("HEAD", "/mcp")
    assert (answer.status, answer.headers["allow"], answer.body) == (405, "POST", b"")


@pytest.mark.fault("M13")
@pytest.mark.parametrize("version", STRANGE_VERSIONS)
@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/mcp", 405),
        ("/.well-known/oauth-protected-resource/mcp", 404),
        ("/.well-known/oauth-protected-resource", 404),
        ("/.well-known/oauth-authorization-server", 404),
        ("/.well-known/openid-configuration", 404),
    ],
)
def test_an_unknown_or_old_revision_does_not_disturb_discovery(wire, version, path, status):
    answer = wire.request("GET", path, None, {"MCP-Protocol-Version": version})
    assert answer.status == status == wire.request("GET", path).status
    assert answer.headers["content-type"] == "application/json"


@pytest.mark.parametrize("kind", [None, "", "text/plain", "application/x-www-form-urlencoded", "application/jsonp"])
@pytest.mark.usefixtures("still_answers")
def test_a_body_of_another_type_is_refused(wire, kind):
    type_line = [f"Content-Type: {kind}".encode()] if kind is not None else []
    body = json.dumps(message(LEGACY[0], "ping")).encode()
    length = f"Content-Length: {len(body)}".encode()
    answer = raw(wire, b"POST /mcp HTTP/1.1", *type_line, length, body=body)
    assert refusal(answer) == (415, "unsupported_media_type")


@pytest.mark.parametrize("kind", ["application/json", "Application/JSON; charset=utf-8", "application/json;x=y"])
def test_parameters_of_the_type_do_not_matter(wire, kind):
    assert post(wire, message(LEGACY[0], "ping"), **{"Content-Type": kind}).json["result"] == {}


# --- Bodies ---------------------------------------------------------------------------------------------------------

PARSE_ERROR, INVALID_REQUEST, INVALID_PARAMS = (400, -32700), (400, -32600), (400, -32602)

BAD_BODIES: dict[str, tuple[bytes, tuple[int, Any]]] = {
    "empty": (b"", PARSE_ERROR),
    "blank": (b" \n", PARSE_ERROR),
    "cut off": (b'{"jsonrpc":"2.0","id":1,"method":"ping"', PARSE_ERROR),
    "two messages": (b'{"jsonrpc":"2.0","id":1,"method":"ping"}{}', PARSE_ERROR),
    "no utf-8": (b'{"jsonrpc":"2.0","id":"\xff","method":"ping"}', PARSE_ERROR),
    "nul bytes": (b"\0\0\0\0", PARSE_ERROR),
    "deep": (b"[" * 100_000, PARSE_ERROR),
    "deep and closed": (b"[" * 200_000 + b"]" * 200_000, PARSE_ERROR),
    "deep objects": (b'{"a":' * 100_000 + b"1" + b"}" * 100_000, PARSE_ERROR),
    "NaN": (b'{"jsonrpc":"2.0","id":1,"method":"ping","params":{"x":NaN}}', PARSE_ERROR),
    "Infinity": (b'{"jsonrpc":"2.0","id":1,"method":"ping","params":{"x":-Infinity}}', PARSE_ERROR),
    "a number of 5,000 digits": (b'{"jsonrpc":"2.0","id":' + b"9" * 5_000 + b',"method":"ping"}', PARSE_ERROR),
    "batch": (b'[{"jsonrpc":"2.0","id":1,"method":"ping"}]', INVALID_REQUEST),
    "empty batch": (b"[]", INVALID_REQUEST),
    "text": (b'"ping"', INVALID_REQUEST),
    "number": (b"1", INVALID_REQUEST),
    "null": (b"null", INVALID_REQUEST),
    "empty object": (b"{}", INVALID_REQUEST),
    "no version": (b'{"id":1,"method":"ping"}', INVALID_REQUEST),
    "JSON-RPC 1.0": (b'{"jsonrpc":"1.0","id":1,"method":"ping"}', INVALID_REQUEST),
    "version as number": (b'{"jsonrpc":2.0,"id":1,"method":"ping"}', INVALID_REQUEST),
    "no method": (b'{"jsonrpc":"2.0","id":1}', INVALID_REQUEST),
    "method null": (b'{"jsonrpc":"2.0","id":1,"method":null}', INVALID_REQUEST),
    "method as list": (b'{"jsonrpc":"2.0","id":1,"method":["ping"]}', INVALID_REQUEST),
    "id null": (b'{"jsonrpc":"2.0","id":null,"method":"ping"}', INVALID_REQUEST),
    "id true": (b'{"jsonrpc":"2.0","id":true,"method":"ping"}', INVALID_REQUEST),
    "id 1.5": (b'{"jsonrpc":"2.0","id":1.5,"method":"ping"}', INVALID_REQUEST),
    "id 1e400": (b'{"jsonrpc":"2.0","id":1e400,"method":"ping"}', INVALID_REQUEST),
    "id object": (b'{"jsonrpc":"2.0","id":{},"method":"ping"}', INVALID_REQUEST),
    "id list": (b'{"jsonrpc":"2.0","id":[1],"method":"ping"}', INVALID_REQUEST),
    "params as list": (b'{"jsonrpc":"2.0","id":1,"method":"ping","params":[1]}', INVALID_PARAMS),
    "params as text": (b'{"jsonrpc":"2.0","id":1,"method":"ping","params":"x"}', INVALID_PARAMS),
}


@pytest.mark.parametrize("kind", BAD_BODIES)
@pytest.mark.usefixtures("still_answers")
def test_what_is_no_request_is_refused_with_a_stable_code(wire, kind):
    body, expected = BAD_BODIES[kind]
    assert refusal(post(wire, body)) == expected


def test_of_two_equal_names_in_an_object_the_last_counts(wire):
    assert post(wire, b'{"jsonrpc":"2.0","id":1,"id":2,"method":"ping"}').json == {
        "jsonrpc": "2.0",
        "id": 2,
        "result": {},
    }


def test_null_params_are_absent_params(wire):
    assert post(wire, b'{"jsonrpc":"2.0","id":1,"method":"ping","params":null}').json["result"] == {}


@pytest.mark.parametrize("answer", [{"id": 1, "result": {}}, {"id": 1, "error": {"code": 1, "message": "?"}}])
def test_an_answer_that_nobody_asked_for_is_taken_without_a_word(wire, answer):
    taken = post(wire, {"jsonrpc": "2.0", **answer})
    assert (taken.status, taken.body) == (202, b"")


@pytest.mark.parametrize("method", ["notifications/initialized", "notifications/progress", "notifications/what", "?"])
def test_a_notification_is_taken_without_a_word(wire, method):
    taken = post(wire, {"jsonrpc": "2.0", "method": method})
    assert (taken.status, taken.body) == (202, b"")


@pytest.mark.usefixtures("still_answers")
def test_a_body_of_a_megabyte_is_read_and_one_byte_more_is_not(wire):
    written = json.dumps(message(LEGACY[0], "ping")).encode()
    assert post(wire, written + b" " * (MEGABYTE - len(written))).json["result"] == {}
    assert refusal(post(wire, written + b" " * (MEGABYTE + 1 - len(written)))) == (413, "too_large")


@pytest.mark.usefixtures("still_answers")
def test_a_body_in_chunks_is_read_up_to_the_same_limit(wire):
    def in_chunks(size: int) -> Iterator[bytes]:
        written = json.dumps(message(LEGACY[0], "ping")).encode()
        yield written
        for _ in range((size - len(written)) // 4096):
            yield b" " * 4096

    def send(size: int) -> Answer:
        with closing(http.client.HTTPConnection("127.0.0.1", wire.port, timeout=10)) as connection:
            sent = {"Content-Type": "application/json", "Transfer-Encoding": "chunked"}
            connection.request("POST", "/mcp", in_chunks(size), sent, encode_chunked=True)
            got = connection.getresponse()
            return Answer(got.status, {k.lower(): v for k, v in got.getheaders()}, got.read())

    assert send(MEGABYTE - 4096).json["result"] == {}
    # Only just too much: a client that is still writing when it is refused would see its connection reset.
    answer = send(MEGABYTE + 8192)
    assert refusal(answer) == (413, "too_large")
    assert answer.json["error"]["data"]["limit"] == MEGABYTE


@pytest.mark.usefixtures("still_answers")
def test_an_announced_length_over_the_limit_is_refused_before_the_body_is_sent(wire):
    answer = raw(
        wire,
        b"POST /mcp HTTP/1.1",
        b"Content-Type: application/json",
        b"Content-Length: 99999999",
        b"Connection: close",
    )
    assert refusal(answer) == (413, "too_large")


@pytest.mark.parametrize("path", ["host", "media type", "method", "json", "revision", "token"])
def test_the_next_call_works_on_the_same_connection_after_a_refusal(wire, path):
    with closing(http.client.HTTPConnection("127.0.0.1", wire.port, timeout=5)) as connection:
        sent = headers(LEGACY[0], "ping") | {"Content-Type": "application/json"}
        wrong = dict(sent)
        body = json.dumps(message(LEGACY[0], "ping"))
        if path == "host":
            wrong["Origin"] = "https://evil.example"
        elif path == "media type":
            wrong["Content-Type"] = "text/plain"
        elif path == "revision":
            wrong["MCP-Protocol-Version"] = "1999-01-01"
        elif path == "token":
            wrong["Authorization"] = "Bearer prl_unknown"
        connection.request("PUT" if path == "method" else "POST", "/mcp", "{" if path == "json" else body, wrong)
        refused = connection.getresponse()
        refused.read()
        assert refused.status in {400, 401, 403, 405, 415}
        connection.request("POST", "/mcp", body, sent)
        assert json.loads(connection.getresponse().read())["result"] == {}


# --- Methods and tools ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "method", ["tools/destroy", "resources/list", "prompts/list", "", "TOOLS/LIST", "\ud800", "a" * 5000]
)
@pytest.mark.usefixtures("still_answers")
def test_an_unknown_method_is_named_by_each_era_in_its_own_way(wire, method):
    assert refusal(post(wire, message(LEGACY[0], method))) == (200, -32601)
    if method.isascii():
        assert refusal(ask(wire, MODERN, method)) == (404, -32601)


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.usefixtures("still_answers")
def test_an_unknown_tool_is_refused(hub, agent, era):
    answer = ask(hub, era, "tools/call", {"name": "send_telegram"}, token=agent("alice").token)
    assert refusal(answer) == (200, -32602)


@pytest.mark.parametrize("name", [None, 1, ["whoami"], {}, "", "WHOAMI", "whoami ", "\0", "\ud800", "a" * 5000])
@pytest.mark.usefixtures("still_answers")
def test_a_name_that_is_no_tools_is_refused(hub, agent, name):
    answer = ask(hub, LEGACY[0], "tools/call", {"name": name}, token=agent("alice").token)
    assert refusal(answer) == (200, -32602)


@pytest.mark.parametrize("arguments", [[], "x", 1, True])
@pytest.mark.usefixtures("still_answers")
def test_arguments_that_are_no_object_are_refused(hub, agent, arguments):
    params = {"name": "whoami", "arguments": arguments}
    assert refusal(ask(hub, LEGACY[0], "tools/call", params, token=agent("alice").token)) == (200, -32602)


@pytest.mark.parametrize("params", [{"name": "whoami"}, {"name": "whoami", "arguments": None}])
def test_arguments_may_be_left_out(hub, agent, params):
    answer = ask(hub, LEGACY[0], "tools/call", params, token=agent("alice").token)
    assert answer.json["result"]["structuredContent"]["handle"] == "alice"


# --- Modern headers -------------------------------------------------------------------------------------------------

MISMATCH = (400, -32020)


@pytest.mark.parametrize(
    ("wrong", "expected"),
    [
        ({"MCP-Protocol-Version": None}, MISMATCH),
        ({"MCP-Protocol-Version": "2025-06-18"}, MISMATCH),
        ({"Mcp-Method": None}, MISMATCH),
        ({"Mcp-Method": "tools/list"}, MISMATCH),
        ({"Mcp-Method": "TOOLS/CALL"}, MISMATCH),
        ({"Mcp-Name": None}, MISMATCH),
        ({"Mcp-Name": "list_peers"}, MISMATCH),
        ({"Mcp-Name": "=?base64?bGlzdF9wZWVycw==?="}, MISMATCH),
        ({"Mcp-Name": "=?base64?***?="}, MISMATCH),
        ({"Mcp-Name": "=?base64?/w==?="}, MISMATCH),
        ({"Mcp-Name": "=?base64??="}, MISMATCH),
    ],
)
@pytest.mark.usefixtures("still_answers")
def test_headers_that_differ_from_the_body_are_refused(hub, agent, wrong, expected):
    answer = ask(hub, MODERN, "tools/call", {"name": "whoami"}, token=agent("alice").token, headers=wrong)
    assert refusal(answer) == expected


def test_a_tools_name_may_come_wrapped_in_base64(hub, agent):
    wrapped = f"=?base64?{base64.b64encode(b'whoami').decode()}?="
    answer = ask(
        hub, MODERN, "tools/call", {"name": "whoami"}, token=agent("alice").token, headers={"Mcp-Name": wrapped}
    )
    assert answer.json["result"]["structuredContent"]["handle"] == "alice"


def test_white_space_around_header_values_does_not_count(wire):
    body = json.dumps(message(MODERN, "tools/list")).encode()
    answer = raw(
        wire,
        b"POST /mcp HTTP/1.1",
        b"content-type: \t application/json \t",
        b"MCP-PROTOCOL-VERSION: \t 2026-07-28 \t ",
        b"mcp-method:   tools/list  ",
        f"Content-Length: {len(body)}".encode(),
        body=body,
    )
    assert answer.status == 200


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        {VERSION: MODERN},
        {CAPABILITIES: {}},
        {VERSION: 1, CAPABILITIES: {}},
        {VERSION: MODERN, CAPABILITIES: []},
        {VERSION: None, CAPABILITIES: None},
    ],
)
@pytest.mark.usefixtures("still_answers")
def test_a_modern_request_without_its_meta_is_refused(wire, wrong):
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {"_meta": wrong}}
    answer = wire.request("POST", "/mcp", body, headers(MODERN, "tools/list"))
    assert refusal(answer) == INVALID_PARAMS


def test_discovery_without_meta_is_refused_so_that_the_client_falls_back(wire):
    answer = post(wire, {"jsonrpc": "2.0", "id": 1, "method": "server/discover"})
    assert refusal(answer) == INVALID_PARAMS


@pytest.mark.parametrize("version", STRANGE_VERSIONS)
@pytest.mark.usefixtures("still_answers")
def test_a_revision_that_is_not_served_is_refused_with_those_that_are(wire, version):
    legacy = wire.request("POST", "/mcp", message(LEGACY[0], "tools/list"), {"MCP-Protocol-Version": version})
    body = message(MODERN, "tools/list")
    body["params"]["_meta"] = meta(version)
    modern = wire.request("POST", "/mcp", body, headers(MODERN, "tools/list") | {"MCP-Protocol-Version": version})
    for answer in (legacy, modern):
        assert refusal(answer) == (400, -32022)
        assert answer.json["error"]["data"] == {"supported": list(ERAS), "requested": version}


def test_a_request_without_any_revision_is_a_legacy_one(wire):
    assert "result" in post(wire, {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}).json


# --- Credentials ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("era", ERAS)
def test_anyone_may_list_the_tools_but_a_call_needs_a_token(wire, era):
    assert ask(wire, era, "tools/list").status == 200
    answer = ask(wire, era, "tools/call", {"name": "whoami"})
    assert refusal(answer) == (401, "unauthenticated")
    assert answer.headers["www-authenticate"] == 'Bearer realm="parley"'


METHODS = ["initialize", "ping", "tools/list", "tools/call", "notifications/initialized", "notifications/cancelled"]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("value", ["Bearer prl_unknown", "Bearer \xe9", "Bearer", "Bearer  ", "Basic YTpi", "x", ""])
@pytest.mark.usefixtures("still_answers")
def test_a_bad_token_is_refused_whatever_the_method(wire, method, value):
    body = {"jsonrpc": "2.0", "method": method, "params": {"name": "whoami"}}
    if not method.startswith("notifications/"):
        body["id"] = 1
    answer = post(wire, body, Authorization=value)
    assert refusal(answer) == (401, "invalid_token")
    assert 'error="invalid_token"' in answer.headers["www-authenticate"]


@pytest.mark.parametrize("method", ["server/discover", "tools/list", "tools/call"])
def test_a_bad_token_is_refused_in_the_modern_era_too(wire, method):
    params = {"name": "whoami"} if method == "tools/call" else {}
    assert refusal(ask(wire, MODERN, method, params, token="prl_unknown")) == (401, "invalid_token")


def test_the_scheme_of_a_token_is_read_in_any_case(hub, agent):
    alice = agent("alice")
    answer = post(hub, message(LEGACY[0], "tools/call", {"name": "whoami"}), Authorization=f"bEARER  {alice.token} ")
    assert McpAgent.result_of(answer)["handle"] == "alice"
