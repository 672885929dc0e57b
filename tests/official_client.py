"""The conversation that the official Python client completes with a hub, written once for its versions 1 and 2.

    ALICE=prl_... BOB=prl_... python official_client.py http://127.0.0.1:8000/mcp

A program of its own, as version 2 lives in an environment without anything of the hub. It prints what it saw as JSON;
`test_official_client` runs it with both versions and judges.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from importlib.metadata import version
from typing import Any

import anyio
from mcp.client.streamable_http import streamable_http_client
from mcp.shared._httpx_utils import create_mcp_http_client

VERSION = version("mcp")
MODERN = VERSION.startswith("2.")


@asynccontextmanager
async def connected(url: str, token: str) -> AsyncIterator[Any]:
    """A client of either version; what they call a session and a client have the same methods for tools."""
    async with create_mcp_http_client(headers={"Authorization": f"Bearer {token}"}) as http:
        transport = streamable_http_client(url, http_client=http)
        if MODERN:
            from mcp import Client  # type: ignore[attr-defined]  # Of version 2 only.

            async with Client(transport) as client:
                yield client
        else:
            from mcp import ClientSession

            async with transport as (read, write, *_), ClientSession(read, write) as session:
                started = await session.initialize()
                session.protocol_version = started.protocolVersion  # type: ignore[attr-defined]
                session.instructions = started.instructions  # type: ignore[attr-defined]
                yield session


async def call(client: Any, tool: str, **arguments: Any) -> tuple[bool, Any]:
    """Whether a tool refused, and what it said, which must be the same in both of its forms."""
    # Longer than the longest wait: the client's own limit is 5 s.
    patience: Any = 60 if MODERN else timedelta(seconds=60)
    result = await client.call_tool(tool, arguments, read_timeout_seconds=patience)
    structured = result.structured_content if MODERN else result.structuredContent
    assert json.loads(result.content[0].text) == structured
    return (result.is_error if MODERN else result.isError), structured


async def converse(url: str) -> dict[str, Any]:
    async with connected(url, os.environ["ALICE"]) as alice, connected(url, os.environ["BOB"]) as bob:
        saw: dict[str, Any] = {"version": VERSION, "protocol": alice.protocol_version}
        saw["instructions"] = alice.instructions
        saw["tools"] = [tool.name for tool in (await alice.list_tools()).tools]
        _, saw["before a claim"] = await call(alice, "whoami")
        _, saw["claimed"] = await call(alice, "claim_connected_profile", handle="alice")
        await call(bob, "claim_connected_profile", handle="bob")

        async def listen() -> None:
            _, page = await call(bob, "wait_for_messages", timeout_s=50)
            saw["bob heard"] = page

        async with anyio.create_task_group() as both:
            both.start_soon(listen)
            while True:  # Until bob is seen waiting.
                _, peers = await call(alice, "list_peers", query="bob")
                if peers["peers"][0]["waiting"]:
                    break
                await anyio.sleep(0.01)
            _, saw["sent"] = await call(
                alice, "send_agent_message", to="bob", body="Are the orders in? 🦊", idempotency_key="ask-orders-1"
            )
        (heard,) = saw["bob heard"]["messages"]
        _, saw["replied"] = await call(
            bob,
            "send_agent_message",
            to="alice",
            body="Yes.",
            thread_root_id=heard["thread_root_id"],
            idempotency_key="answer-orders-1",
        )
        _, saw["alice heard"] = await call(alice, "wait_for_messages", timeout_s=50)
        after = saw["alice heard"]["after_sequence"]
        _, saw["idle"] = await call(alice, "wait_for_messages", timeout_s=0, after_sequence=after)
        _, saw["status"] = await call(alice, "message_status", message_id=saw["sent"]["message_id"])
        saw["refused"] = await call(alice, "send_agent_message", to="bobb", body="x", idempotency_key="ask-orders-2")

        # A wait that is given up in the middle.
        with anyio.move_on_after(0.5):
            await call(alice, "wait_for_messages", timeout_s=50, after_sequence=after)
        await call(bob, "send_agent_message", to="alice", body="And one more.", idempotency_key="more-orders-1")
        _, saw["after giving up"] = await call(alice, "wait_for_messages", timeout_s=50, after_sequence=after)
        return saw


if __name__ == "__main__":
    print(json.dumps(anyio.run(converse, sys.argv[1])))
