"""A hub and its agents, for tests: a real server in a thread of the test process, and clients that speak to it over sockets.

`McpAgent` and `HttpAgent` have one interface, so that one test body runs through both doors. `call` returns what the tool
returned; `refusal` the error it must give. Waits that run beside the test return futures; `eventually` is how tests wait.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import socket
import threading
import uuid
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, urlencode

import uvicorn
from django.contrib.auth import get_user_model

from agents.connections import credentials
from agents.connections.models import Connection
from messaging import store
from messaging.doorbell import doorbell, stream_key
from messaging.models import Profile

# The longest a test waits for something that has to happen: if it has not by then, it will not.
PATIENCE_S = 5.0


def eventually(condition: Callable[[], Any], what: str = "") -> Any:
    """The first truthy value of `condition`, looked at again and again for five seconds."""
    pause = threading.Event()
    for _ in range(int(PATIENCE_S / 0.01)):
        value = condition()
        if value:
            return value
        pause.wait(0.01)
    raise AssertionError(f"did not happen within {PATIENCE_S} s: {what or condition}")


def key() -> str:
    """A new idempotency key."""
    return uuid.uuid4().hex


@dataclass
class Answer:
    """An HTTP answer."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Address:
    """Where a hub answers: its port on this machine."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.url = f"http://127.0.0.1:{port}"

    def request(
        self,
        method: str,
        path: str,
        body: Any = None,
        headers: dict[str, str] | None = None,
        timeout_s: float = 60,
    ) -> Answer:
        """One request on a connection of its own. `body`: bytes as they are, anything else as JSON, None for no body."""
        sent = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        all_headers = {"Content-Type": "application/json"} if sent is not None else {}
        with closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout_s)) as connection:
            connection.request(method, path, body=sent, headers={**all_headers, **(headers or {})})
            answer = connection.getresponse()
            return Answer(answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read())

    def rpc(self, method: str, params: Any = None, *, token: str | None = None, **more: Any) -> Answer:
        """One legacy JSON-RPC request to `/mcp`. `more`: id, headers, timeout_s."""
        message = {"jsonrpc": "2.0", "id": more.pop("id", 1), "method": method, "params": params or {}}
        headers = {**({"Authorization": f"Bearer {token}"} if token else {}), **more.pop("headers", {})}
        return self.request("POST", "/mcp", message, headers, **more)


class Hub(Address):
    """A server on a free port, with its event loop in a thread."""

    def __init__(self) -> None:
        from config.asgi import application

        self.socket = socket.create_server(("127.0.0.1", 0), backlog=2048)
        super().__init__(self.socket.getsockname()[1])
        config = uvicorn.Config(application, log_level="warning", access_log=False, timeout_graceful_shutdown=2)
        self.server = uvicorn.Server(config)
        self.thread = threading.Thread(target=self._serve, name="test-hub", daemon=True)
        self.loop: asyncio.AbstractEventLoop | None = None

    def start(self) -> Hub:
        self.thread.start()
        eventually(lambda: self.server.started, "the hub starts")
        return self

    def _serve(self) -> None:
        async def serve() -> None:
            self.loop = asyncio.get_running_loop()
            await self.server.serve(sockets=[self.socket])
            await store.close_pool()

        asyncio.run(serve())

    def stop(self) -> None:
        self.server.should_exit = True
        self.thread.join(10)
        self.socket.close()

    def end_waits(self) -> None:
        """Ends the waits that a test has left open, so that the next one begins with none."""
        if doorbell.waiting:
            doorbell.drain()
            eventually(lambda: not doorbell.waiting, "no wait is left")
            doorbell.draining = False


class Refused(Exception):
    """A call was refused. `error` is what the hub said: code, message, retry_after_s, details."""

    def __init__(self, error: dict[str, Any], status: int) -> None:
        super().__init__(f"{status} {error}")
        self.error, self.status = error, status
        self.code: str = error["code"]


@dataclass
class Agent:
    """An agent with a token. Subclasses say through which door `call` goes."""

    hub: Address
    token: str
    connection: Connection
    handle: str = ""
    answers: list[Answer] = field(default_factory=list)

    def call(self, tool: str, **arguments: Any) -> Any:
        raise NotImplementedError

    def refusal(self, tool: str, **arguments: Any) -> dict[str, Any]:
        """The error that this call must be refused with."""
        try:
            result = self.call(tool, **arguments)
        except Refused as refused:
            return refused.error
        raise AssertionError(f"{tool} was not refused: {result}")

    def claim(self, handle: str, **more: Any) -> Any:
        claimed = self.call("claim_connected_profile", handle=handle, **more)
        self.handle = handle
        return claimed

    def send(self, to: str, body: str = "hello", **more: Any) -> Any:
        """A direct message."""
        return self.call("send_agent_message", **{"to": to, "body": body, "idempotency_key": key(), **more})

    def post(self, channel: str, body: str = "hello", **more: Any) -> Any:
        """A message in a channel."""
        return self.call("send_channel_message", **{"channel": channel, "body": body, "idempotency_key": key(), **more})

    def wait(self, **arguments: Any) -> Any:
        """A page of the inbox; does not wait unless told to."""
        return self.call("wait_for_messages", **{"timeout_s": 0, **arguments})

    def peek(self, **arguments: Any) -> Any:
        return self.call("inbox_peek", **arguments)

    def bodies(self, **arguments: Any) -> list[str]:
        """The bodies of a page of the inbox."""
        return [m["body"] for m in self.wait(**arguments)["messages"]]

    @property
    def profile(self) -> Profile:
        return Profile.objects.get(handle=self.handle, released_at=None)

    def waiters(self) -> int:
        return doorbell.waiters(stream_key(self.profile.inbox_id))

    def waiting(self, **arguments: Any) -> Future[Any]:
        """Starts a wait beside the test and returns once the hub listens for it."""
        before = self.waiters()
        future = in_background(lambda: self.wait(**{"timeout_s": 20, **arguments}))
        eventually(lambda: future.done() or self.waiters() > before, "the wait is listening")
        return future


class McpAgent(Agent):
    """Through `/mcp`, as a legacy client."""

    door = "mcp"

    def call(self, tool: str, **arguments: Any) -> Any:
        answer = self.hub.rpc("tools/call", {"name": tool, "arguments": arguments}, token=self.token)
        self.answers.append(answer)
        return self.result_of(answer)

    @staticmethod
    def result_of(answer: Answer) -> Any:
        """What a tool returned, or `Refused`. Structured and text content must be equal."""
        message = answer.json
        if "error" in message:
            error = message["error"]
            raise Refused(error.get("data") or {"code": str(error["code"]), "message": error["message"]}, answer.status)
        result = message["result"]
        assert json.loads(result["content"][0]["text"]) == result["structuredContent"]
        if result["isError"]:
            raise Refused(result["structuredContent"], answer.status)
        return result["structuredContent"]


class HttpAgent(Agent):
    """Through `/api/v1/`."""

    door = "http"

    def call(self, tool: str, **arguments: Any) -> Any:
        method, path, query, body = http_twin(tool, arguments)
        if query:
            path += "?" + urlencode(query)
        answer = self.hub.request(method, f"/api/v1/{path}", body, {"Authorization": f"Bearer {self.token}"})
        self.answers.append(answer)
        if answer.status >= 400:
            raise Refused(answer.json["error"], answer.status)
        return answer.json


def http_twin(tool: str, arguments: dict[str, Any]) -> tuple[str, str, dict[str, Any], Any]:
    """The HTTP request that does what a tool does: method, path, query, body."""
    rest = dict(arguments)

    def part(name: str) -> str:
        return quote(str(rest.pop(name)), safe="")

    reading = {
        "wait_for_messages": lambda: "inbox",
        "inbox_peek": lambda: "inbox/pending",
        "whoami": lambda: "profile",
        "list_peers": lambda: "profiles",
        "list_channels": lambda: "channels",
        "message_status": lambda: f"messages/{part('message_id')}",
        "read_message": lambda: f"messages/{part('message_id')}/body",
        "read_channel": lambda: f"channels/{part('channel')}/messages",
        "read_thread": lambda: f"threads/{part('thread_root_id')}",
        "search_messages": lambda: "search",
    }
    writing = {
        "claim_connected_profile": lambda: ("PUT", "profile"),
        "send_agent_message": lambda: ("POST", "messages"),
        "send_channel_message": lambda: ("POST", "messages"),
        "preview_send": lambda: ("POST", "preview"),
        "acknowledge": lambda: ("POST", "inbox/acknowledge"),
        "edit_message": lambda: ("PATCH", f"messages/{part('message_id')}"),
        "retract_message": lambda: ("DELETE", f"messages/{part('message_id')}"),
        "create_channel": lambda: ("POST", "channels"),
        "join_channel": lambda: ("POST", f"channels/{part('name')}/members"),
        "leave_channel": lambda: ("DELETE", f"channels/{part('name')}/members"),
        "set_channel_policy": lambda: ("PUT", f"channels/{part('name')}/policy"),
        "ask_person": lambda: ("POST", "questions"),
        "answer_question": lambda: ("POST", f"questions/{part('question_id')}/answer"),
    }
    if tool in reading:
        path = reading[tool]()
        # A query string has no null: what is absent is left out.
        return "GET", path, {name: value for name, value in rest.items() if value is not None}, None
    method, path = writing[tool]()
    return method, path, {}, rest


DOORS: dict[str, type[Agent]] = {"mcp": McpAgent, "http": HttpAgent}


def new_agent(hub: Address, door: str, *, owner: str = "owner", handle: str | None = None, **more: Any) -> Agent:
    """An agent of `owner` (made if there is none) with a connection of its own. `more` goes to `issue_connection`."""
    account, _ = get_user_model().objects.get_or_create(username=owner)
    connection, token = credentials.issue_connection(owner=account, name=handle or "agent", handle=handle, **more)
    return DOORS[door](hub, token, connection, handle or "")


def in_background(work: Callable[[], Any]) -> Future[Any]:
    """Runs work in a thread of its own; its result or exception is in the future."""
    future: Future[Any] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as failure:
            future.set_exception(failure)

    threading.Thread(target=run, daemon=True).start()
    return future
