"""The SQL of the hot path: each function is one statement, for PostgreSQL and SQLite alike unless it says otherwise.

They stand apart from the rules in `delivery`, so that the rules read as rules. The order in which rows are locked (streams,
by id) stands in one place: `hand_out_sequences`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from messaging.batches import ForEach, Insert
from messaging.pages import MESSAGE_COLUMNS
from messaging.store import Json, Row, Statement, on_postgres, one_of

# More than that is "a lot": counting on would cost more than the number tells.
MAX_UNREAD_COUNTED = 100

MESSAGE_JOINS = "JOIN profile author ON author.id = m.sender_id JOIN channel c ON c.id = m.channel_id"

# In which order the statements of sends that share a transaction are run: all look before anybody locks (1, `HandOut`).
BEFORE, BETWEEN = ForEach(0), ForEach(2)
KEYS = Insert(
    0,
    "send_key",
    {"profile_id": "bigint", "key": "text", "content_hash": "bytea", "message_id": "uuid", "created_at": "timestamptz"},
    " ON CONFLICT (profile_id, key) DO NOTHING RETURNING message_id",
    returns="message_id",
)
MESSAGES = Insert(
    3,
    "message",
    {
        "id": "uuid",
        "channel_id": "bigint",
        "channel_sequence": "bigint",
        "sender_id": "bigint",
        "thread_root_id": "uuid",
        "refers_to_id": "uuid",
        "kind": "text",
        "body": "text",
        "created_at": "timestamptz",
        "expires_at": "timestamptz",
        "receipt": "jsonb",
    },
)
DELIVERIES = Insert(
    4,
    "delivery",
    {"message_id": "uuid", "inbox_id": "bigint", "sequence": "bigint", "route": "text", "offers": "integer"},
)


def _guarded(guard: Statement | None) -> tuple[str, list[Any]]:
    return (f"EXISTS ({guard.sql})", list(guard.params)) if guard else ("TRUE", [])


# --- Sending --------------------------------------------------------------------------------------------------------


def sender_state(profile_id: int, guard: Statement | None) -> Statement:
    """(may act, is paused) of a live profile; no row if it has been released."""
    allowed, params = _guarded(guard)
    return Statement(
        f"SELECT {allowed}, paused_at IS NOT NULL FROM profile WHERE id = %s AND released_at IS NULL",
        [*params, profile_id],
        BEFORE,
    )


def take_key(profile_id: int, key: str, content_hash: bytes, message_id: UUID, now: datetime) -> Statement:
    """One row if the key is new; none if it is taken. Waits for a transaction that holds the same key."""
    return KEYS.of((profile_id, key, content_hash, message_id, now))


def give_key_back(message_id: UUID) -> Statement:
    """The send was refused; it may share a transaction with others that are not."""
    return Statement("DELETE FROM send_key WHERE message_id = %s", [message_id])


def sent_under_key(profile_id: int, key: str) -> Statement:
    """(content hash, receipt) of an earlier send. A statement of its own: the insert that met the key cannot see its row."""
    return Statement(
        "SELECT k.content_hash, m.receipt FROM send_key k JOIN message m ON m.id = k.message_id "
        "WHERE k.profile_id = %s AND k.key = %s",
        [profile_id, key],
    )


def direct_target(handle: str, sender_id: int) -> Statement:
    """(profile, inbox, handle, kind, paused, blocks the sender, direct channel, its stream) of a live handle."""
    return Statement(
        "SELECT p.id, p.inbox_id, p.handle, p.kind, p.paused_at IS NOT NULL, "
        "EXISTS (SELECT 1 FROM block b WHERE b.blocker_id = p.id AND b.blocked_id = %s), c.id, c.stream_id "
        "FROM profile p LEFT JOIN channel c ON c.kind = 'direct' "
        "AND c.low_id = CASE WHEN p.id < %s THEN p.id ELSE %s END "
        "AND c.high_id = CASE WHEN p.id < %s THEN %s ELSE p.id END "
        "WHERE p.handle = %s AND p.released_at IS NULL",
        [sender_id, sender_id, sender_id, sender_id, sender_id, handle],
        BEFORE,
    )


def named_channel(name: str, profile_id: int) -> Statement:
    """(channel, stream, kind, archived) if this profile may read it."""
    return Statement(
        "SELECT c.id, c.stream_id, c.kind, c.archived_at IS NOT NULL FROM channel c WHERE c.name = %s AND (c.kind = 'public' "
        "OR EXISTS (SELECT 1 FROM membership ms WHERE ms.channel_id = c.id AND ms.profile_id = %s))",
        [name, profile_id],
        BEFORE,
    )


def candidates(handles: Sequence[str], sender_id: int, channel_id: int | None) -> Statement:
    """(profile, inbox, handle, kind, paused, blocks the sender, member of the channel) of the live profiles among handles."""
    return Statement(
        "SELECT p.id, p.inbox_id, p.handle, p.kind, p.paused_at IS NOT NULL, "
        "EXISTS (SELECT 1 FROM block b WHERE b.blocker_id = p.id AND b.blocked_id = %s), "
        "EXISTS (SELECT 1 FROM membership ms WHERE ms.channel_id = %s AND ms.profile_id = p.id) "
        f"FROM profile p WHERE {one_of('p.handle')} AND p.released_at IS NULL",
        [sender_id, channel_id, list(handles)],
    )


def handles_like(handles: Sequence[str]) -> Statement:
    """Up to 500 live handles that begin or end with the same letter as one of these, to suggest from."""
    first, last = one_of("substr(handle, 1, 1)"), one_of("substr(handle, length(handle), 1)")
    return Statement(
        f"SELECT handle FROM profile WHERE released_at IS NULL AND kind <> 'system' AND ({first} OR {last}) "
        "ORDER BY handle LIMIT 500",
        [sorted({h[:1] for h in handles}), sorted({h[-1:] for h in handles})],
    )


def other_members(channel_id: int, sender_id: int, limit: int, *, people_only: bool) -> Statement:
    """Handles of members other than the sender, those seen last first."""
    return Statement(
        "SELECT p.handle FROM membership ms JOIN profile p ON p.id = ms.profile_id JOIN presence pr ON pr.profile_id = p.id "
        "WHERE ms.channel_id = %s AND p.id <> %s AND (p.kind = 'person' OR %s) AND p.released_at IS NULL "
        "AND p.paused_at IS NULL ORDER BY pr.last_seen_at DESC NULLS LAST, p.id LIMIT %s",
        [channel_id, sender_id, not people_only, limit],
    )


def new_stream() -> Statement:
    return Statement("INSERT INTO stream (kind, tail) VALUES ('channel', 0) RETURNING id")


def new_direct_channel(stream_id: int, low: int, high: int, now: datetime) -> Statement:
    """(channel) if the pair had none. Waits for a transaction that makes the same one."""
    return Statement(
        "INSERT INTO channel (kind, stream_id, topic, low_id, high_id, created_at) VALUES ('direct', %s, '', %s, %s, %s) "
        "ON CONFLICT DO NOTHING RETURNING id",
        [stream_id, low, high, now],
    )


def direct_channel(low: int, high: int) -> Statement:
    """(channel, stream) of a pair."""
    return Statement(
        "SELECT id, stream_id FROM channel WHERE kind = 'direct' AND low_id = %s AND high_id = %s", [low, high]
    )


def drop_stream(stream_id: int) -> Statement:
    return Statement("DELETE FROM stream WHERE id = %s", [stream_id])


def message_place(message_id: UUID, profile_id: int) -> Statement:
    """(channel, its name, its kind, thread root, handles of a direct pair) of a message that this profile may read."""
    return Statement(
        "SELECT m.channel_id, c.name, c.kind, m.thread_root_id, low.handle, high.handle FROM message m "
        "JOIN channel c ON c.id = m.channel_id LEFT JOIN profile low ON low.id = c.low_id "
        "LEFT JOIN profile high ON high.id = c.high_id "
        "WHERE m.id = %s AND (c.kind = 'public' OR c.low_id = %s OR c.high_id = %s "
        "OR EXISTS (SELECT 1 FROM membership ms WHERE ms.channel_id = c.id AND ms.profile_id = %s))",
        [message_id, profile_id, profile_id, profile_id],
        BEFORE,
    )


class HandOut:
    """Sequences for several sends: each stream is locked once, and each send gets a place of its own, in their order."""

    rank = 1

    def combine(self, statements: Sequence[Statement]) -> Statement:
        wanted = Counter(stream for s in statements for stream in s.params[0])
        return Statement(
            "WITH wanted AS (SELECT * FROM unnest(%s::bigint[], %s::bigint[]) AS w(id, places)), "
            "locked AS (SELECT id FROM stream WHERE id = ANY(%s) ORDER BY id FOR NO KEY UPDATE) "
            "UPDATE stream SET tail = tail + wanted.places FROM locked JOIN wanted ON wanted.id = locked.id "
            "WHERE stream.id = locked.id RETURNING stream.id, stream.tail - wanted.places",
            [list(wanted), list(wanted.values()), sorted(wanted)],
        )

    def split(self, statements: Sequence[Statement], rows: list[Row]) -> list[list[Row]]:
        last: dict[int, int] = dict(rows)
        parts: list[list[Row]] = []
        for statement in statements:
            for stream in statement.params[0]:
                last[stream] += 1
            parts.append([(stream, last[stream]) for stream in statement.params[0]])
        return parts


HAND_OUT = HandOut()


def hand_out_sequences(stream_ids: Sequence[int]) -> Statement:
    """(stream, new tail) for each stream, which stay locked until the commit: so sequences become visible in their order.

    The rows are locked by ascending id, so that two senders cannot hold what the other waits for.
    """
    ids = sorted(stream_ids)
    if on_postgres():
        # NO KEY: rows that refer to the stream (new deliveries of others) do not wait for it.
        return Statement(
            "WITH locked AS (SELECT id FROM stream WHERE id = ANY(%s) ORDER BY id FOR NO KEY UPDATE) "
            "UPDATE stream SET tail = tail + 1 FROM locked WHERE stream.id = locked.id RETURNING stream.id, stream.tail",
            [ids],
            HAND_OUT,
        )
    # The whole database is locked since BEGIN IMMEDIATE.
    return Statement(f"UPDATE stream SET tail = tail + 1 WHERE {one_of('id')} RETURNING id, tail", [ids])


def insert_message(
    *,
    message_id: UUID,
    channel_id: int,
    channel_sequence: int,
    sender_id: int,
    thread_root_id: UUID,
    refers_to: UUID | None,
    kind: str,
    body: str,
    now: datetime,
    expires_at: datetime | None,
    receipt: Any,
) -> Statement:
    return MESSAGES.of(
        (
            *(
                message_id,
                channel_id,
                channel_sequence,
                sender_id,
                thread_root_id,
                refers_to,
                kind,
                body,
                now,
                expires_at,
            ),
            Json(receipt),
        )
    )


def insert_deliveries(message_id: UUID, places: Sequence[tuple[int, int, str]]) -> Statement:
    """One delivery for each (inbox, sequence, route)."""
    return DELIVERIES.of(*((message_id, inbox_id, sequence, route, 0) for inbox_id, sequence, route in places))


def insert_question(message_id: UUID, options: Sequence[str], asked_id: int | None) -> Statement:
    return Statement(
        "INSERT INTO question (message_id, options, asked_id) VALUES (%s, %s, %s)",
        [message_id, Json(list(options)), asked_id],
    )


def unread_by(profile_id: int, inbox_id: int, *, column: str, value: UUID | int) -> Statement:
    """How many messages of others came into a thread (`thread_root_id`) or a direct conversation (`channel_id`) after the last
    one that this profile sent or acknowledged there; counted up to 100."""
    return Statement(
        "WITH newer AS (SELECT m.channel_sequence AS place, EXISTS (SELECT 1 FROM delivery d WHERE d.message_id = m.id "
        "AND d.inbox_id = %s AND d.acknowledged_at IS NOT NULL) AS acknowledged "
        f"FROM message m WHERE m.{column} = %s AND m.sender_id <> %s AND m.channel_sequence > "
        f"COALESCE((SELECT max(o.channel_sequence) FROM message o WHERE o.{column} = %s AND o.sender_id = %s), 0) "
        "AND m.kind NOT IN ('edit', 'retraction') AND m.retracted_at IS NULL "
        f"ORDER BY m.channel_sequence DESC LIMIT {MAX_UNREAD_COUNTED}) "
        "SELECT count(*) FROM newer WHERE place > COALESCE((SELECT max(place) FROM newer WHERE acknowledged), 0)",
        [inbox_id, value, profile_id, value, profile_id],
        BETWEEN,
    )


# --- Reading an inbox -----------------------------------------------------------------------------------------------


def inbox_page(
    *, inbox_id: int, profile_id: int, after: int | None, limit: int, guard: Statement | None, now: datetime
) -> Statement:
    """The state of an inbox and, if any, its next messages, in one snapshot and without writing.

    Each row: (may act, paused, tail, offered through, pruned through, something to acknowledge up to `after`), then either
    nulls or (delivery, sequence, route, offers, MESSAGE_COLUMNS). Counts from `after`, or from what was last offered. Leaves
    out what is acknowledged, expired or retracted.
    """
    allowed, params = _guarded(guard)
    # The first by order, not EXISTS: with stale statistics (all just acknowledged) that is planned as a scan of the table.
    start = "%s" if after is not None else "(SELECT offered_through FROM inbox_cursor WHERE inbox_id = %s)"
    return Statement(
        f"""SELECT head.*, page.* FROM (
            SELECT {allowed} AS allowed, p.paused_at IS NOT NULL AS paused, s.tail, ic.offered_through, ic.pruned_through,
                (SELECT x.id FROM delivery x WHERE x.inbox_id = s.id AND x.sequence <= %s AND x.acknowledged_at IS NULL
                    AND x.offered_at IS NOT NULL ORDER BY x.sequence LIMIT 1) IS NOT NULL AS to_acknowledge
            FROM stream s JOIN inbox_cursor ic ON ic.inbox_id = s.id
                JOIN profile p ON p.inbox_id = s.id AND p.released_at IS NULL
            WHERE s.id = %s AND p.id = %s
        ) AS head LEFT JOIN (
            SELECT d.id AS delivery_id, d.sequence, d.route, d.offers, {MESSAGE_COLUMNS_NAMED}
            FROM delivery d JOIN message m ON m.id = d.message_id {MESSAGE_JOINS}
            WHERE d.inbox_id = %s AND d.sequence > {start} AND d.acknowledged_at IS NULL
                AND m.retracted_at IS NULL AND (m.expires_at IS NULL OR m.expires_at > %s)
            ORDER BY d.sequence LIMIT %s
        ) AS page ON TRUE ORDER BY page.sequence""",
        [
            *(*params, -1 if after is None else after, inbox_id, profile_id),
            *(inbox_id, inbox_id if after is None else after, now, limit),
        ],
    )


# A subquery needs a name for each column.
MESSAGE_COLUMNS_NAMED = ", ".join(
    f"{column.strip()} AS column_{number}" for number, column in enumerate(MESSAGE_COLUMNS.split(","))
)


def mark_offered(delivery_ids: Sequence[int], now: datetime) -> Statement:
    """(delivery, offers, for the first time) of those still to be had: not acknowledged meanwhile over another connection."""
    return Statement(
        "UPDATE delivery SET offered_at = COALESCE(offered_at, %s), offers = offers + 1 "
        f"WHERE {one_of('id')} AND acknowledged_at IS NULL RETURNING id, offers, offered_at = %s",
        [now, list(delivery_ids), now],
    )


def move_cursor(inbox_id: int, to: int) -> Statement:
    """Moves the server's own cursor forward, never back."""
    return Statement(
        "UPDATE inbox_cursor SET offered_through = %s WHERE inbox_id = %s AND offered_through < %s RETURNING 1",
        [to, inbox_id, to],
    )


def move_cursor_back(inbox_id: int, *, expected: int, to: int) -> Statement:
    """Moves it back, unless another answer has moved it since."""
    return Statement(
        "UPDATE inbox_cursor SET offered_through = %s WHERE inbox_id = %s AND offered_through = %s",
        [to, inbox_id, expected],
    )


def unmark_offered(delivery_id: int, *, expected_offers: int) -> Statement:
    """Takes the state back, unless it was offered again or acknowledged since. `offers` stays: it will come as a repeat."""
    return Statement(
        "UPDATE delivery SET offered_at = NULL WHERE id = %s AND offers = %s AND acknowledged_at IS NULL",
        [delivery_id, expected_offers],
    )


def acknowledge_through(inbox_id: int, sequence: int, now: datetime) -> Statement:
    """(delivery) for each one acknowledged: what was offered up to this place. What never was stays in the inbox."""
    return Statement(
        "UPDATE delivery SET acknowledged_at = %s WHERE inbox_id = %s AND sequence <= %s AND acknowledged_at IS NULL "
        "AND offered_at IS NOT NULL RETURNING id",
        [now, inbox_id, sequence],
    )


def open_exchanges(profile_id: int, inbox_id: int, since: datetime) -> Statement:
    """(somebody owes this profile an answer, it owes somebody one) among what was sent since."""
    unanswered = (
        "NOT EXISTS (SELECT 1 FROM message a WHERE a.channel_id = m.channel_id AND a.sender_id = {answerer} "
        "AND a.channel_sequence > m.channel_sequence)"
    )
    return Statement(
        "SELECT EXISTS (SELECT 1 FROM message m JOIN delivery d ON d.message_id = m.id AND d.route IN ('to', 'direct') "
        "JOIN profile r ON r.inbox_id = d.inbox_id WHERE m.sender_id = %s AND m.created_at > %s AND "
        f"{unanswered.format(answerer='r.id')}), "
        "EXISTS (SELECT 1 FROM delivery d JOIN message m ON m.id = d.message_id WHERE d.inbox_id = %s "
        "AND d.acknowledged_at IS NULL AND d.route IN ('to', 'direct') AND m.created_at > %s AND "
        f"{unanswered.format(answerer='%s')})",
        [profile_id, since, inbox_id, since, profile_id],
    )
