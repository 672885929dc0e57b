"""A loopback proxy that adds a bearer token, because the conformance suite cannot send one.

It changes nothing else, above all neither Host nor Origin nor the order, case or spaces of headers, which the suite tests.
One connection carries one exchange: so the answer can be passed on byte by byte until it ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

# More than any request of the suite.
MAX_HEAD_BYTES = 65_536


@asynccontextmanager
async def proxy(*, port: int, hub_port: int, token: str) -> AsyncIterator[None]:
    """Listens on `port` of 127.0.0.1 and passes each exchange on to the hub, with the token."""

    async def exchange(client: asyncio.StreamReader, back: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            head = await client.readuntil(b"\r\n\r\n")
            hub, forth = await asyncio.open_connection("127.0.0.1", hub_port)
            forth.write(with_token(head, token))
            there = asyncio.create_task(carry(client, forth))
            await carry(hub, back)
            there.cancel()
            forth.close()
        back.close()

    server = await asyncio.start_server(exchange, "127.0.0.1", port, limit=MAX_HEAD_BYTES)
    async with server:
        yield


def with_token(head: bytes, token: str) -> bytes:
    """The request's head with the token, if it brings none, and with the wish to close after the answer."""
    first, *lines = head[:-4].split(b"\r\n")
    kept = [line for line in lines if not line.lower().startswith(b"connection:")]
    if not any(line.lower().startswith(b"authorization:") for line in kept):
        kept.append(b"Authorization: Bearer " + token.encode())
    return b"\r\n".join([first, *kept, b"Connection: close", b"", b""])


async def carry(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    while chunk := await source.read(MAX_HEAD_BYTES):
        target.write(chunk)
        await target.drain()
