"""An inbox of 50,000 messages works like an empty one: the new message comes, after as many statements, by way of an index."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from messaging import delivery, store
from messaging.access import Caller, as_caller
from messaging.doorbell import Bell
from tests.interleaving import fill_inbox

MANY = 50_000

# What can lie in an inbox before a new message: read and done, handed out but never acknowledged, never asked for.
HISTORIES: dict[str, dict[str, bool] | None] = {
    "empty": None,
    "all acknowledged": {"offered": True, "acknowledged": True},
    "all offered": {"offered": True},
    "all unread": {"offered": False},
}


def with_history(bob, alice, history: str) -> int:
    """Fills bob's inbox; returns the cursor of a client that has processed all of it."""
    fields = HISTORIES[history]
    if fields is None:
        return 0
    fill_inbox(bob.profile, alice.profile, MANY, **fields)
    return MANY


@pytest.mark.fault("L16")
@pytest.mark.parametrize("history", HISTORIES)
def test_a_new_message_comes_at_once_however_much_lies_before_it(agent, history):
    alice, bob = agent("alice"), agent("bob")
    cursor = with_history(bob, alice, history)
    assert bob.wait(after_sequence=cursor)["messages"] == []
    waiting = bob.waiting(after_sequence=cursor)

    alice.send("bob", "the new one")

    page = waiting.result(5)
    assert [(m["sequence"], m["body"]) for m in page["messages"]] == [(cursor + 1, "the new one")]
    assert (page["has_more"], page["after_sequence"]) == (False, cursor + 1)
    assert agent("bob", door="http").bodies(after_sequence=cursor) == ["the new one"]
    # The cursor acknowledged what had been offered, and nothing else.
    assert bob.call("whoami")["unread"] == (MANY + 1 if history == "all unread" else 1)


@pytest.mark.fault("L16")
def test_a_backlog_is_read_from_its_beginning_and_says_that_there_is_more(agent):
    alice, bob = agent("alice"), agent("bob")
    with_history(bob, alice, "all unread")
    alice.send("bob", "the new one")

    page = bob.wait(after_sequence=0, limit=50)
    assert [m["sequence"] for m in page["messages"]] == list(range(1, 51))
    assert (page["has_more"], page["tail_sequence"]) == (True, MANY + 1)
    assert [m["body"] for m in bob.peek(after_sequence=MANY)["messages"]] == ["the new one"]


# --- What a look costs ----------------------------------------------------------------------------------------------


def noted(steps: store.Steps[Any], seen: list[store.Statement]) -> store.Steps[Any]:
    """The same steps; their statements are noted."""
    rows: Any = None
    while True:
        try:
            statement = steps.send(rows)
        except StopIteration as end:
            return end.value
        seen.append(statement)
        rows = yield statement


def look(by: Caller, after: int | None) -> list[store.Statement]:
    """Looks once at an inbox, as a wait does; returns the statements that it took."""
    seen: list[store.Statement] = []
    steps = delivery.look(by=by, after=after, cursor_given=after is not None, limit=20, bell=Bell())
    store.run(noted(steps, seen))
    return seen


@pytest.mark.fault("L16")
@pytest.mark.parametrize("history", HISTORIES)
def test_a_look_takes_as_many_statements_and_reads_as_few_rows_as_in_an_empty_inbox(agent, history):
    alice, bob = agent("alice"), agent("bob")
    cursor = with_history(bob, alice, history)
    reader = as_caller(bob.profile)
    bob.wait(after_sequence=cursor)  # Once, a cursor acknowledges what had been offered.
    (page,) = look(reader, cursor)
    check_plan(page)
    alice.send("bob", "the new one")

    # The page; and BEGIN, the mark, the cursor of the hub, COMMIT.
    assert len(look(reader, cursor)) == 5
    check_plan(look(reader, cursor + 1)[0])


def check_plan(page: store.Statement) -> None:
    """The statement finds the few rows that it needs by an index."""
    if store.on_postgres():
        (whole,) = store.run(store.one(page._replace(sql=f"EXPLAIN (ANALYZE, FORMAT JSON) {page.sql}")))[0]
        rows = [(n["Relation Name"], rows_read(n)) for n in nodes(whole[0]["Plan"]) if "Relation Name" in n]
        assert sum(n for _, n in rows) < 100, rows
    else:
        plan = [row[-1] for row in store.run(store.one(page._replace(sql=f"EXPLAIN QUERY PLAN {page.sql}")))]
        found = [step for step in plan if step.split()[1] in {"d", "x", "m"}]
        assert [step.split(" (")[0] for step in found] == [
            "SEARCH d USING INDEX delivery_pending",
            "SEARCH m USING INDEX sqlite_autoindex_message_1",
            "SEARCH x USING INDEX delivery_offered",
        ]


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for below in plan.get("Plans", []):
        yield from nodes(below)


def rows_read(node: dict[str, Any]) -> int:
    return int((node["Actual Rows"] + node.get("Rows Removed by Filter", 0)) * node["Actual Loops"])
