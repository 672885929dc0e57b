"""The same long poll through the official Python SDK, which costs several times what the hub does and so is reported apart."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from threading import Event
from typing import Any

import httpx
from mcp import ClientSession
from mcp.client.streamable_http import streamable_http_client

from agents.demo.stage import Agent

# 5 s: how long the demo goes on after it was stopped, at most.
WAIT_S = 5


def arrivals(reader: Agent, messages: int, ready: Event, stop: Event) -> list[float]:
    """When each of so many messages had come to the reader. Sets `ready` once it is about to wait; ends soon after `stop`."""
    return asyncio.run(_arrivals(reader, messages, ready, stop))


async def _arrivals(reader: Agent, messages: int, ready: Event, stop: Event) -> list[float]:
    arrived: list[float] = []
    cursor = 0
    async with session(reader) as reading:
        ready.set()
        while len(arrived) < messages and not stop.is_set():
            page = await call(reading, "wait_for_messages", {"after_sequence": cursor, "timeout_s": WAIT_S})
            arrived += [time.perf_counter()] * len(page["messages"])
            cursor = page["after_sequence"]
    return arrived


async def call(through: ClientSession, tool: str, arguments: dict[str, Any]) -> dict[str, Any]:
    result = await through.call_tool(tool, arguments)
    if result.isError or result.structuredContent is None:
        raise RuntimeError(f"{tool} was refused: {result.content}")
    return result.structuredContent


@asynccontextmanager
async def session(agent: Agent) -> AsyncIterator[ClientSession]:
    """A session of the SDK with the agent's own token, which knows the tools."""
    headers = {"Authorization": f"Bearer {agent.token}"}
    async with (
        httpx.AsyncClient(headers=headers, timeout=httpx.Timeout(10, read=60)) as http,
        streamable_http_client(f"{agent.stage.url.rstrip('/')}/mcp", http_client=http) as (read, write, _),
        ClientSession(read, write) as opened,
    ):
        await opened.initialize()
        await opened.list_tools()
        yield opened
