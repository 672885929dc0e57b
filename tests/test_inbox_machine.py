"""The inbox as a state machine, against the real hub: whatever is lost, repeated or begun anew, a client that passes its cursor
processes exactly the messages that were sent to it, in their order, and what it acknowledged never comes back.

Hypothesis makes up the runs. The model is a list for each recipient. Each run has handles and connections of its own, so that
runs need no empty database.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import count
from typing import Any, ClassVar

import pytest
from django.utils import timezone
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from agents.connections import credentials
from messaging.models import Message
from tests.hub import Agent, key

RECIPIENTS = ("first", "second")
runs = count()


@dataclass
class Expected:
    """One message in one recipient's inbox, as the model knows it."""

    sequence: int
    message_id: str
    body: str
    route: str
    offers: int = 0
    acknowledged: bool = False
    expired: bool = False

    @property
    def pending(self) -> bool:
        return not self.acknowledged and not self.expired


@dataclass
class Client:
    """A recipient: the agent, what it has processed, and the model of its inbox."""

    agent: Agent
    cursor: int = 0
    processed: list[str] = field(default_factory=list)
    inbox: list[Expected] = field(default_factory=list)
    offered_through: int = 0

    def receives(self, receipt: Any, body: str, route: str) -> None:
        self.inbox.append(Expected(len(self.inbox) + 1, receipt["message_id"], body, route))

    def page_after(self, cursor: int, limit: int) -> tuple[list[Expected], bool]:
        """What a page shows, and whether there is more."""
        found = [e for e in self.inbox if e.sequence > cursor and e.pending]
        return found[:limit], len(found) > limit

    def acknowledge(self, through: int) -> None:
        for expected in self.inbox:
            if expected.sequence <= through and expected.offers:
                expected.acknowledged = True

    def poll(self, *, limit: int, with_cursor: bool = True) -> Any:
        """A wait that is answered at once; the page is compared with the model and what it did is noted there."""
        if with_cursor:
            self.acknowledge(self.cursor)
        start = self.cursor if with_cursor else self.offered_through
        expected, more = self.page_after(start, limit)
        page = self.agent.wait(limit=limit, **({"after_sequence": self.cursor} if with_cursor else {}))
        assert shown(page) == [(e.sequence, e.message_id, e.body, e.route, e.offers > 0) for e in expected]
        tail = len(self.inbox)
        assert page["has_more"] == more
        assert page["tail_sequence"] == tail
        assert page["after_sequence"] == (expected[-1].sequence if more else max(tail, start))
        assert (page["advice"] is None) == bool(expected)
        for e in expected:
            e.offers += 1
        if expected:
            self.offered_through = max(self.offered_through, page["after_sequence"])
        return page


def shown(page: Any) -> list[Any]:
    return [(m["sequence"], m["message_id"], m["body"], m["route"], m["redelivered"]) for m in page["messages"]]


limits = st.integers(1, 4)
recipients = st.sampled_from(RECIPIENTS)
bodies = st.sampled_from(["hello", "again", "`code` and more", "r\u00e9sum\u00e9 \U0001f600"])


class InboxMachine(RuleBasedStateMachine):
    """One sender, two recipients."""

    sends: Bundle[Any] = Bundle("sends")

    # Said by the test.
    make_agent: ClassVar[Callable[..., Agent]]

    def __init__(self) -> None:
        super().__init__()
        self.clients: dict[str, Client] = {}

    @initialize()
    def claim(self) -> None:
        """Each claims a handle of its own, through the tool."""
        number = next(runs)
        self.sender = self.make_agent(owner="sender")
        self.sender.claim(f"sender-{number}")
        for name in RECIPIENTS:
            agent = self.make_agent(owner=name)
            agent.claim(f"{name}-{number}")
            self.clients[name] = Client(agent)
        self.channel = f"channel-{number}"
        self.sender.call("create_channel", name=self.channel)

    # --- Sending ------------------------------------------------------------------------------------------------

    @rule(target=sends, to=recipients, body=bodies)
    def send(self, to: str, body: str) -> Any:
        client = self.clients[to]
        arguments = {"to": client.agent.handle, "body": body, "idempotency_key": key()}
        receipt = self.sender.call("send_agent_message", **arguments)
        assert receipt["replayed"] is False
        client.receives(receipt, body, "direct")
        return "send_agent_message", arguments, receipt

    @rule(
        target=sends, named=st.lists(recipients, unique=True), mentioned=st.lists(recipients, unique=True), body=bodies
    )
    def post(self, named: list[str], mentioned: list[str], body: str) -> Any:
        """In the channel, to some and mentioning some; perhaps nobody is addressed."""
        handles = {name: client.agent.handle for name, client in self.clients.items()}
        text = " ".join([body, *(f"@{handles[name]}" for name in mentioned)])
        arguments = {
            "channel": self.channel,
            "to": [handles[name] for name in named],
            "body": text,
            "idempotency_key": key(),
        }
        receipt = self.sender.call("send_channel_message", **arguments)
        for name, client in self.clients.items():
            if name in named or name in mentioned:
                client.receives(receipt, text, "to" if name in named else "mention")
        return "send_channel_message", arguments, receipt

    @rule(sent=sends)
    def resend(self, sent: Any) -> None:
        """The same key and content: the first receipt, and no second message."""
        tool, arguments, receipt = sent
        assert self.sender.call(tool, **arguments) == {**receipt, "replayed": True}

    @rule(sent=sends)
    def send_something_else_under_the_same_key(self, sent: Any) -> None:
        tool, arguments, _ = sent
        refusal = self.sender.refusal(tool, **{**arguments, "body": arguments["body"] + "!"})
        assert refusal["code"] == "idempotency_key_reused"

    # --- Receiving ----------------------------------------------------------------------------------------------

    @rule(name=recipients, limit=limits)
    def poll(self, name: str, limit: int) -> None:
        """A page arrives, is processed, and the cursor moves."""
        client = self.clients[name]
        page = client.poll(limit=limit)
        client.processed += [m["message_id"] for m in page["messages"]]
        client.cursor = page["after_sequence"]

    @rule(name=recipients, limit=limits)
    def poll_and_lose_the_response(self, name: str, limit: int) -> None:
        self.clients[name].poll(limit=limit)

    @rule(name=recipients, limit=limits)
    def another_program_polls_without_a_cursor(self, name: str, limit: int) -> None:
        """It shares the profile and the hub's own cursor; this client's cursor is its own."""
        self.clients[name].poll(limit=limit, with_cursor=False)

    @rule(name=recipients)
    def peek(self, name: str) -> None:
        client = self.clients[name]
        peeked = client.agent.peek(limit=50)
        pending, more = client.page_after(0, 50)
        assert shown(peeked) == [(e.sequence, e.message_id, e.body, e.route, e.offers > 0) for e in pending]
        assert peeked["has_more"] == more

    @precondition(lambda self: any(client.processed for client in self.clients.values()))
    @rule(data=st.data())
    def acknowledge_what_was_processed(self, data: Any) -> None:
        """By id; some of it perhaps a second time."""
        client = data.draw(st.sampled_from([c for c in self.clients.values() if c.processed]))
        ids = data.draw(st.lists(st.sampled_from(client.processed), min_size=1, max_size=5, unique=True))
        due = [e for e in client.inbox if e.message_id in ids and not e.acknowledged]
        answer = client.agent.call("acknowledge", message_ids=ids)
        for e in due:
            e.acknowledged = True
        assert answer == {"acknowledged": len(due), "remaining": sum(e.pending for e in client.inbox)}

    @rule(name=recipients)
    def acknowledge_through_the_cursor(self, name: str) -> None:
        client = self.clients[name]
        due = [e for e in client.inbox if e.sequence <= client.cursor and e.offers and not e.acknowledged]
        answer = client.agent.call("acknowledge", through_sequence=client.cursor)
        client.acknowledge(client.cursor)
        assert answer == {"acknowledged": len(due), "remaining": sum(e.pending for e in client.inbox)}

    @rule(name=recipients, beyond=st.integers(1, 3))
    def poll_with_a_cursor_of_another_inbox(self, name: str, beyond: int) -> None:
        client = self.clients[name]
        tail = len(client.inbox)
        refusal = client.agent.refusal("wait_for_messages", after_sequence=tail + beyond, timeout_s=0)
        assert (refusal["code"], refusal["tail_sequence"]) == ("cursor_ahead", tail)

    # --- What happens to them -----------------------------------------------------------------------------------

    @rule(name=recipients)
    def rotate_the_token(self, name: str) -> None:
        """The client comes back with a new token and its cursor; the old token is worthless."""
        client = self.clients[name]
        old, client.agent.token = client.agent.token, credentials.rotate_token(connection=client.agent.connection)
        client.agent.connection.refresh_from_db()
        former = type(client.agent)(client.agent.hub, old, client.agent.connection, client.agent.handle)
        assert former.refusal("inbox_peek")["code"] == "invalid_token"

    @rule(name=recipients)
    def connect_anew(self, name: str) -> None:
        """The client starts again as another connection of the same owner, which claims the handle."""
        client = self.clients[name]
        handle = client.agent.handle
        client.agent = self.make_agent(owner=name)
        assert client.agent.claim(handle)["created"] is False

    @rule(sent=consumes(sends))
    def expire(self, sent: Any) -> None:
        """The time that the sender gave to a message is over."""
        _, _, receipt = sent
        past = timezone.now() - timedelta(seconds=1)
        Message.objects.filter(pk=receipt["message_id"]).update(expires_at=past)
        for client in self.clients.values():
            for e in client.inbox:
                if e.message_id == receipt["message_id"]:
                    e.expired = True

    # --- What always holds --------------------------------------------------------------------------------------

    @invariant()
    def nothing_is_processed_twice_or_out_of_order(self) -> None:
        for client in self.clients.values():
            places = {e.message_id: e.sequence for e in client.inbox}
            order = [places[message_id] for message_id in client.processed]
            assert order == sorted(set(order))

    def teardown(self) -> None:
        """At the end each client reads on until nothing is left, and then it has processed everything that it was owed."""
        for name, client in self.clients.items():
            while client.page_after(client.cursor, 1)[0]:
                self.poll(name, 4)
            self.poll(name, 4)
            missing = [e for e in client.inbox if e.message_id not in client.processed]
            assert all(e.expired for e in missing)


@pytest.mark.fault("L1")
@pytest.mark.fault("L14")
@pytest.mark.mutant(
    "messaging/delivery.py", "if has_more else max(tail, began_after)", "if not has_more else max(tail, began_after)"
)
@pytest.mark.mutant(
    "messaging/statements.py",
    "WHERE d.inbox_id = %s AND d.sequence > {start}",
    "WHERE d.inbox_id = %s AND d.sequence >= {start}",
)
def test_a_client_with_a_cursor_processes_exactly_what_it_was_sent_in_order(agent):
    class Machine(InboxMachine):
        make_agent = staticmethod(agent)

    run_state_machine_as_test(
        Machine,
        settings=settings(
            max_examples=15,
            stateful_step_count=30,
            suppress_health_check=[HealthCheck.too_slow],
            # Without shrinking, which would take minutes: each attempt speaks to the hub.
            phases=[Phase.explicit, Phase.reuse, Phase.generate],
            report_multiple_bugs=False,
        ),
    )
