"""What somebody wants to say, before anything is looked up: a draft, its limits, and what its idempotency key is bound to."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, replace
from typing import Any, Literal
from uuid import UUID

from messaging import errors, handles
from messaging.access import channel_name

MAX_BODY = 20_000  # Characters: the published limit.
MIN_KEY, MAX_KEY = 8, 128
MAX_TO = 20
MAX_EXPIRY_S = 30 * 86_400  # Longer than that is retention's business.


@dataclass(frozen=True, slots=True)
class Draft:
    """What somebody wants to say: to one handle (`to_handle`) or into one channel (`channel`), perhaps addressed (`to`)."""

    body: str
    to_handle: str | None = None
    channel: str | None = None
    to: tuple[str, ...] = ()
    thread_root_id: UUID | None = None
    expires_in_s: int | None = None
    kind: Literal["message", "notice", "result", "question", "decision"] = "message"
    options: tuple[str, ...] = ()
    refers_to: UUID | None = None

    def checked(self) -> Draft:
        """The same with normalised addresses, or an `Invalid` that names the limit."""
        check_text("body", self.body, 1, MAX_BODY)
        if len(self.to) > MAX_TO:
            raise errors.Invalid(f"`to` takes at most {MAX_TO} handles.", code="too_many_recipients", limit=MAX_TO)
        if self.expires_in_s is not None and not 1 <= self.expires_in_s <= MAX_EXPIRY_S:
            raise errors.Invalid(f"`expires_in_s` is 1 to {MAX_EXPIRY_S} seconds.", limit=MAX_EXPIRY_S)
        for handle in (self.to_handle, *self.to):
            if handle is not None:
                check_text("to", handle, 1, 64)
        if self.channel is not None:
            check_text("channel", self.channel, 1, 64)
        return replace(
            self,
            to=tuple(dict.fromkeys(handles.as_addressed(h) for h in self.to)),
            to_handle=handles.as_addressed(self.to_handle) if self.to_handle is not None else None,
            channel=channel_name(self.channel) if self.channel is not None else None,
        )

    def content_hash(self) -> bytes:
        """Equal for equal intentions: what the idempotency key is bound to."""
        content: list[Any] = [
            self.kind,
            self.to_handle,
            self.channel,
            sorted(self.to),
            self.body,
            str(self.thread_root_id),
        ]
        content += [self.expires_in_s, list(self.options)]
        return hashlib.sha256(json.dumps(content, ensure_ascii=False).encode()).digest()


def check_text(name: str, text: str, least: int, most: int) -> None:
    """Refuses what cannot be stored or is too long: never cut silently."""
    if not least <= len(text) <= most:
        raise errors.Invalid(f"`{name}` has {least} to {most} characters; this has {len(text)}.", limit=most)
    if "\0" in text:
        raise errors.Invalid(f"`{name}` contains a NUL character, which cannot be stored. Remove it.")
    if any("\ud800" <= c <= "\udfff" for c in text):
        raise errors.Invalid(f"`{name}` contains half of a surrogate pair, which is no character. Send valid Unicode.")


def check_key(key: str) -> None:
    check_text("idempotency_key", key, MIN_KEY, MAX_KEY)
