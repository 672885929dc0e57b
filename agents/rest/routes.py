"""The addresses of the HTTP API: for each path and method the operation behind it.

The table is all there is to an address: arguments, limits, refusals and results are the operation's own. The view
(`agents.rest.views`) and the OpenAPI description (`agents.rest.openapi`) both read it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from agents import operations
from agents.operations import Operation


@dataclass(frozen=True, slots=True)
class Route:
    """One method of one path. With `other`, another operation serves it when the argument `if_given` is there; the two then
    have a `name` in common."""

    method: str
    path: str
    operation: Operation
    creates: bool = False
    name: str = ""
    if_given: str = ""
    other: Operation | None = None

    def operation_for(self, given: Mapping[str, Any]) -> Operation:
        return self.other if self.other and given.get(self.if_given) is not None else self.operation

    @property
    def operations(self) -> tuple[Operation, ...]:
        return (self.operation, self.other) if self.other else (self.operation,)

    def status(self, result: Any) -> int:
        """201 for what was made by this very call; a replay made nothing."""
        return 201 if self.creates and not result.get("replayed") else 200


_tool = operations.BY_NAME.__getitem__

ROUTES: tuple[Route, ...] = (
    Route("GET", "profile", _tool("whoami")),
    Route("PUT", "profile", operations.CLAIM),
    Route("GET", "profiles", _tool("list_peers")),
    Route(
        "POST",
        "messages",
        _tool("send_agent_message"),
        creates=True,
        name="send_message",
        if_given="channel",
        other=_tool("send_channel_message"),
    ),
    Route("GET", "messages/<message_id>", _tool("message_status")),
    Route("PATCH", "messages/<message_id>", _tool("edit_message")),
    Route("DELETE", "messages/<message_id>", _tool("retract_message")),
    Route("GET", "messages/<message_id>/body", _tool("read_message")),
    Route("POST", "preview", _tool("preview_send")),
    Route("GET", "inbox/pending", _tool("inbox_peek")),
    Route("POST", "inbox/acknowledge", _tool("acknowledge")),
    Route("GET", "channels", _tool("list_channels")),
    Route("POST", "channels", _tool("create_channel"), creates=True),
    Route("GET", "channels/<channel>/messages", _tool("read_channel")),
    Route(
        "POST",
        "channels/<name>/members",
        _tool("join_channel"),
        name="join_or_add_member",
        if_given="handle",
        other=operations.ADD_MEMBER,
    ),
    Route("DELETE", "channels/<name>/members", _tool("leave_channel")),
    Route("PUT", "channels/<name>/policy", _tool("set_channel_policy")),
    Route("GET", "threads/<thread_root_id>", _tool("read_thread")),
    Route("GET", "search", _tool("search_messages")),
    Route("POST", "questions", _tool("ask_person"), creates=True),
    Route("GET", "questions/<question_id>", operations.FIND_QUESTION),
    Route("POST", "questions/<question_id>/answer", operations.ANSWER_QUESTION),
)
# Served before Django (`agents.rest.inbox`), and part of the description all the same.
INBOX = Route("GET", "inbox", operations.WAIT)
