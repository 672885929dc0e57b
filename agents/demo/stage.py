"""Where the demo plays: one hub, the agents it has let in so far, and how another one is let in."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack, closing
from typing import Any

from agents.demo.client import Client

OWNER, GUEST = "parley-demo", "parley-demo-guest"


class Agent:
    """A scripted agent: a token, a connection of its own (so that each has its own rate limit), and a handle once claimed."""

    def __init__(self, stage: Stage, token: str) -> None:
        self.stage, self.token = stage, token
        self.client = stage.closing.enter_context(closing(Client(stage.url, token)))
        self.handle = ""

    def call(self, tool: str, **arguments: Any) -> Any:
        return self.client.call(tool, **arguments)

    def claim(self, handle: str) -> Any:
        claimed = self.call("claim_connected_profile", handle=handle)
        self.handle = handle
        self.stage.handles.add(handle)
        return claimed

    def begin_to_send(self, to: Agent, body: str, key: str) -> None:
        self.client.begin("send_agent_message", to=to.handle, body=body, idempotency_key=key)

    def send(self, to: Agent, body: str, key: str) -> Any:
        self.begin_to_send(to, body, key)
        return self.client.finish()

    def inbox(self, *, limit: int = 50, after_sequence: int | None = None) -> Any:
        """A page of what is there now."""
        return self.call("wait_for_messages", timeout_s=0, limit=limit, after_sequence=after_sequence)


class Stage:
    """`issue` makes a token of an owner. `suffix` makes this run's handles its own on a hub that others use.

    Leaving the `with` block closes every connection; `handles` are those that were claimed.
    """

    def __init__(self, url: str, issue: Callable[[str], str], suffix: str = "") -> None:
        self.url, self.issue, self.suffix = url, issue, suffix
        self.handles: set[str] = set()
        self.closing = ExitStack()

    def __enter__(self) -> Stage:
        return self

    def __exit__(self, *_: object) -> None:
        self.closing.close()

    def newcomer(self, owner: str = OWNER) -> Agent:
        """An agent with a token and without a handle."""
        return Agent(self, self.issue(owner))

    def agent(self, name: str, owner: str = OWNER) -> Agent:
        """An agent that has claimed its handle."""
        agent = self.newcomer(owner)
        agent.claim(self.named(name))
        return agent

    def named(self, name: str) -> str:
        return f"{name}{self.suffix}"
