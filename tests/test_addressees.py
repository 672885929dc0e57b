"""Whose mail it is: what is handed out stays with its addressee until acknowledged, and nobody is handed anything else."""

from __future__ import annotations

import random
from collections import defaultdict
from dataclasses import dataclass, field

import pytest

from messaging import access, channels

# --- Handed out, and still there ------------------------------------------------------------------------------------


@pytest.mark.fault("L19")
def test_what_was_handed_out_stays_until_acknowledged_whenever_and_wherever_it_came_from(agent, door):
    alice, bob = agent("alice"), agent("bob")
    for name in ("one", "two"):
        alice.call("create_channel", name=name)

    waiting = bob.waiting()
    alice.post("one", "while he waits", to=["bob"])
    waiting.result(5)
    alice.post("two", "while he is busy", to=["bob"])
    alice.send("bob", "directly")
    bob.wait()
    alice.post("one", "@bob while he is away")
    everything = ["while he waits", "while he is busy", "directly", "@bob while he is away"]

    assert [m["body"] for m in bob.peek()["messages"]] == everything
    assert bob.bodies(after_sequence=0) == everything
    assert bob.call("whoami")["unread"] == 4

    bob.call("acknowledge", through_sequence=4)
    assert bob.peek()["messages"] == bob.wait(after_sequence=0)["messages"] == []
    assert bob.call("whoami")["unread"] == 0


@pytest.mark.fault("L19")
def test_what_one_of_two_parallel_waits_was_handed_is_not_lost_for_the_other(agent, door):
    alice, bob = agent("alice"), agent("bob")
    waits = [bob.waiting(), bob.waiting()]
    alice.send("bob", "for either of you")

    assert [m["body"] for w in waits for m in w.result(5)["messages"]] == ["for either of you"] * 2
    assert bob.bodies(after_sequence=0) == ["for either of you"]


# --- Not one's own --------------------------------------------------------------------------------------------------


@pytest.mark.fault("L20")
def test_own_posts_and_self_mentions_never_come_into_the_own_inbox(agent, door):
    alice, bob = agent("alice"), agent("bob")
    also_alice = agent("alice")
    alice.call("create_channel", name="work")
    alice.call("join_channel", name="work")

    alice.post("work", "to nobody")
    named = alice.post("work", "to myself", to=["alice"])
    mentioned = alice.post("work", "note to @alice")
    both = also_alice.post("work", "@alice and @bob", to=["alice", "bob"])
    sent = alice.send("bob", "also for @alice?")
    assert (
        alice.refusal("send_agent_message", to="alice", body="hi", idempotency_key="to-myself")["code"] == "self_send"
    )
    alice.call("edit_message", message_id=both["message_id"], body="@bob and @alice")
    alice.call("retract_message", message_id=sent["message_id"])

    assert [s["reason"] for s in named["skipped"]] == ["self"]
    assert named["delivered"] == mentioned["delivered"] == []
    for connection in (alice, also_alice):
        assert connection.peek()["pending"] == 0
        assert connection.wait(after_sequence=0)["tail_sequence"] == 0
    # The post and its edit, and the retraction; what was retracted is gone.
    assert [m["kind"] for m in bob.peek()["messages"]] == ["message", "edit", "retraction"]


# --- Random traffic -------------------------------------------------------------------------------------------------


@dataclass
class World:
    """What was said so far, and who therefore must have it: a model of the rule, without the hub's code."""

    members: dict[str, set[str]]  # Of each private channel.
    expected: dict[str, list[tuple[str, str]]] = field(default_factory=lambda: defaultdict(list))

    def says(self, sender: str, body: str, *, channel: str, to: list[str], mentions: list[str]) -> None:
        for route, named in (("to", to), ("mention", mentions)):
            for handle in named:
                may_read = channel not in self.members or handle in self.members[channel]
                if handle != sender and may_read and (body, "to") not in self.expected[handle]:
                    self.expected[handle].append((body, route))


@pytest.mark.fault("L20")
@pytest.mark.fault("L21")
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_in_random_traffic_each_row_of_an_inbox_is_addressed_to_its_owner_and_allowed_to_it(agent, door, seed):
    chance = random.Random(seed)
    handles = [f"agent-{n}" for n in range(5)]
    agents = {h: agent(h, owner=f"owner-of-{h}") for h in handles}
    founder = agents[handles[0]]
    members = {"secret": {handles[0], handles[1]}, "closed": {handles[0], handles[2], handles[3]}}
    founder.call("create_channel", name="square")
    for name, them in members.items():
        founder.call("create_channel", name=name, private=True)
        for handle in them - {founder.handle}:
            channels.add_member(by=access.as_caller(founder.profile), name=name, handle=handle)
    world = World(members)

    for number in range(70):
        sender = chance.choice(handles)
        to = chance.sample(handles, chance.randint(0, 3))
        if chance.random() < 0.3:
            peer = chance.choice([h for h in handles if h != sender])
            body = f"{number}: to you, not to @{chance.choice(handles)}"
            agents[sender].send(peer, body)
            world.expected[peer].append((body, "direct"))
            continue
        channel = chance.choice(["square", *members])
        mentions = chance.sample(handles, chance.randint(0, 2))
        body = " ".join([f"{number}:", *(f"@{h}" for h in mentions)])
        if channel in members and sender not in members[channel]:
            assert (
                agents[sender].refusal(
                    "send_channel_message", channel=channel, body=body, to=to, idempotency_key=f"no-member-{number}"
                )["code"]
                == "unknown_channel"
            )
            continue
        agents[sender].post(channel, body, to=to)
        world.says(sender, body, channel=channel, to=to, mentions=mentions)

    assert sum(map(len, world.expected.values())) > 40
    for handle, reader in agents.items():
        rows = reader.wait(after_sequence=0, limit=50)["messages"]
        assert [(m["body"], m["route"]) for m in rows] == world.expected[handle]
        assert handle not in {m["sender"]["handle"] for m in rows}
        private = {m["channel"]["name"] for m in rows if m["channel"] and m["channel"]["kind"] == "private"}
        assert all(handle in members[name] for name in private)
        assert [m["message_id"] for m in reader.peek(limit=50)["messages"]] == [m["message_id"] for m in rows]
