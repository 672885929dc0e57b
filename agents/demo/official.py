"""The same long poll through the official Python SDK, which costs about 3 ms a call by itself and so is reported apart."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import httpx
from mcp import ClientSession
from mcp.client.streamable_http import streamable_http_client

from agents.demo.stage import Agent


def latencies(sender: Agent, reader: Agent, instants: Sequence[float]) -> list[float]:
    """Seconds from each send to the return of the wait that it ends; `instants` are seconds from the beginning."""
    return asyncio.run(_latencies(sender, reader, instants))


async def _latencies(sender: Agent, reader: Agent, instants: Sequence[float]) -> list[float]:
    async with session(sender) as sending, session(reader) as reading:
        begin = time.perf_counter()
        arrived = asyncio.create_task(_arrivals(reading, len(instants)))
        sent = []
        for number, instant in enumerate(instants):
            await asyncio.sleep(begin + instant - time.perf_counter())
            sent.append(time.perf_counter())
            arguments = {"to": reader.handle, "body": f"message {number}", "idempotency_key": f"official {number}"}
            await call(sending, "send_agent_message", arguments)
        return [there - then for then, there in zip(sent, await arrived, strict=True)]


async def _arrivals(reading: ClientSession, messages: int) -> list[float]:
    arrived: list[float] = []
    cursor = 0
    while len(arrived) < messages:
        page = await call(reading, "wait_for_messages", {"after_sequence": cursor, "timeout_s": 50})
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
    """A session of the SDK with the agent's own token."""
    headers = {"Authorization": f"Bearer {agent.token}"}
    async with (
        httpx.AsyncClient(headers=headers, timeout=httpx.Timeout(10, read=60)) as http,
        streamable_http_client(f"{agent.stage.url.rstrip('/')}/mcp", http_client=http) as (read, write, _),
        ClientSession(read, write) as opened,
    ):
        await opened.initialize()
        yield opened
