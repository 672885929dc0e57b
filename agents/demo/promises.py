"""The experiments that need no clock: who may be called what, who gets what, what a lost answer costs, what a retry sends."""

from __future__ import annotations

import random
import string
from collections.abc import Callable
from typing import Any

from agents.demo.client import Refused
from agents.demo.stage import GUEST, Agent, Stage
from agents.demo.tables import Must, Result, of

RESERVED = ("maestro", "direct", "all", "everyone", "here", "channel", "admin", "system", "parley")


# --- Claims -----------------------------------------------------------------------------------------------------------


def claims(stage: Stage) -> Result:
    """Good and bad handles: each claimed, and what came of it."""
    ann, second, guest = stage.newcomer(), stage.newcomer(), stage.newcomer(GUEST)
    rows = [("(none yet: whoami)", "no_profile", _outcome(lambda: ann.call("whoami")))]

    def claim(agent: Agent, handle: str, expected: str, shown: str = "") -> None:
        rows.append((shown or handle, expected, _outcome(lambda: agent.claim(handle))))

    own = stage.named("ann-claude")
    claim(ann, own, "claimed")
    claim(ann, own, "joined", f"{own}, again")
    claim(second, own, "joined", f"{own}, the owner's second client")
    claim(guest, own, "handle_taken", f"{own}, another owner")
    claim(ann, _free_pair(ann), "claimed")
    claim(ann, stage.named("seven-times-seventy").ljust(31, "7"), "claimed")
    claim(ann, stage.named("7up"), "claimed")
    for bad in (
        "a",
        "a" * 32,
        "Ann",
        "Ann-Claude",
        "-ann",
        "ann_claude",
        "ann.claude",
        "ann claude",
        "@ann",
        "änn",
        "аnn",
        "",
    ):
        claim(ann, bad, "invalid_handle", {"": "(nothing)", "аnn": "аnn (a Cyrillic а)"}.get(bad, ""))
    for word in RESERVED:
        claim(ann, word, "reserved_handle")
    right = sum(expected == got for _, expected, got in rows)
    must = Must("handles claimed or refused as they should", "", of(right, len(rows)), "all", right == len(rows))
    return Result("Claims: who may be called what", ("handle", "expected", "got"), rows, [must])


def _outcome(claim: Callable[[], Any]) -> str:
    try:
        return "claimed" if claim()["created"] else "joined"
    except Refused as refused:
        return refused.code


def _free_pair(agent: Agent) -> str:
    """A handle of two characters, the shortest there are, that nobody on this hub has."""
    letters = random.Random(2)  # noqa: S311 - any will do
    while True:
        pair = "".join(letters.choices(string.ascii_lowercase + string.digits, k=2))
        if not any(peer["handle"] == pair for peer in agent.call("list_peers", query=pair, limit=100)["peers"]):
            return pair


# --- Mentions ---------------------------------------------------------------------------------------------------------


def mentions(stage: Stage) -> Result:
    """Bodies, and into whose inboxes they came. Three handles of which each is the beginning of the next are there."""
    ann = stage.agent("ann-mentions")
    name = stage.named("bob-codex")
    bob, dash, longer = (Agent(stage, stage.issue(GUEST)) for _ in range(3))
    bob.claim(name), dash.claim(f"{name}-2"), longer.claim(f"{name}y")
    channel = ann.call("create_channel", name=stage.named("demo-mentions"))["name"]
    at = f"@{name}"
    mentioned, longer_one, nobody = f"{name} (mention)", f"{name}y (mention)", "nobody"
    bodies = [
        (f"ask {at}.", mentioned),
        (f"({at})", mentioned),
        (f"@{name.title()} hi", mentioned),
        (f"it is {at}'s turn, {at}: go", mentioned),
        (f"mail bob{at}.dev", nobody),
        (f"{at}-2 hi", f"{name}-2 (mention)"),
        (f"{at}_x hi", nobody),
        (f"{at}y hi", longer_one),
        (f"write `{at}` to address it", nobody),
        ("@all @everyone hi", nobody),
        (f"@nobody-of-this-name and {at}", mentioned),
    ]
    peers, rows = _Inboxes([bob, dash, longer]), []
    for number, (body, expected) in enumerate(bodies):
        ann.call("send_channel_message", channel=channel, body=body, idempotency_key=f"mention-{number}")
        rows.append((body, expected, peers.got()))
    ann.call("send_channel_message", channel=channel, body="no name", to=[name], idempotency_key="mention-to")
    rows.append(("no name, but `to` bob", f"{name} (to)", peers.got()))
    ann.send(bob, "no name", "mention-direct")
    rows.append(("no name, a direct message to bob", f"{name} (direct)", peers.got()))
    right = sum(expected == got for _, expected, got in rows)
    must = Must("messages that reached whom they name", "", of(right, len(rows)), "all", right == len(rows))
    return Result("Mentions: who gets it", ("body", "expected", "got"), rows, [must])


class _Inboxes:
    """Several inboxes, looked at again and again."""

    def __init__(self, agents: list[Agent]) -> None:
        self.cursors = dict.fromkeys(agents, 0)

    def got(self) -> str:
        """Who got something since the last look, and why."""
        found = []
        for agent, cursor in self.cursors.items():
            page = agent.inbox(after_sequence=cursor)
            self.cursors[agent] = page["after_sequence"]
            found += [f"{agent.handle} ({message['route']})" for message in page["messages"]]
        return ", ".join(found) or "nobody"


# --- Lost answers -----------------------------------------------------------------------------------------------------


def drops(stage: Stage, *, messages: int = 20, every: int = 5) -> Result:
    """Every fifth answer of a wait is read and thrown away, as if the client had crashed before it saw it."""
    sender = stage.agent("ann-drops")
    careful, forgetful = stage.agent("careful"), stage.agent("forgetful")
    sent = [f"message {number}" for number in range(1, messages + 1)]
    for reader in (careful, forgetful):
        for body in sent:
            sender.send(reader, body, f"{reader.handle} {body}")

    kept, lost, repeats = _read(careful, every, with_cursor=True)
    seen, thrown, _ = _read(forgetful, every, with_cursor=False)
    left = [message["body"] for message in forgetful.call("inbox_peek", limit=50)["messages"]]
    gone = len(sent) - len(seen)
    found = f"{of(len(left), gone)} in inbox_peek" if left == thrown else f"inbox_peek has {left}"
    columns = ("client", "answers thrown away", "published", "seen", "the others")
    rows = [
        (
            "passes after_sequence",
            str(len(lost)),
            "20/20",
            of(len(kept), messages),
            f"{repeats} came again, marked redelivered",
        ),
        ("passes no cursor", str(len(thrown)), "16/20", of(len(seen), messages), found),
    ]
    musts = [
        Must("lost answers, with a cursor", "20/20", of(len(kept), messages), "all, in order", kept == sent),
        Must(
            "lost answers, without one: seen", "16/20", of(len(seen), messages), "16/20", len(seen) == messages * 4 // 5
        ),
        Must(
            "and left in inbox_peek", "", of(len(left), gone), "exactly the others", sorted(seen + left) == sorted(sent)
        ),
    ]
    notes = ("  The second client acknowledges each message that it sees; what it never saw is late, and not lost.",)
    return Result("Lost answers: every fifth one is thrown away", columns, rows, musts, notes)


def _read(agent: Agent, every: int, *, with_cursor: bool) -> tuple[list[str], list[str], int]:
    """Reads until nothing comes: the bodies seen, those in answers thrown away, and how many of the seen were repeats."""
    seen: list[str] = []
    thrown: list[str] = []
    answers = repeats = 0
    cursor = 0 if with_cursor else None
    while (page := agent.inbox(limit=1, after_sequence=cursor))["messages"]:
        answers += 1
        (message,) = page["messages"]
        if answers % every == 0:
            thrown.append(message["body"])
            continue
        seen.append(message["body"])
        repeats += message["redelivered"]
        if with_cursor:
            cursor = page["after_sequence"]
        else:
            agent.call("acknowledge", message_ids=[message["message_id"]])
    return seen, thrown, repeats


# --- Retries ----------------------------------------------------------------------------------------------------------


def keys(stage: Stage) -> Result:
    """One idempotency key three times, three keys, and one key for something else."""
    ann, bob = stage.agent("ann-keys"), stage.agent("bob-keys")

    same = [ann.send(bob, "once", "the same key") for _ in range(3)]
    arrived = len(bob.inbox()["messages"])
    equal = sum({**receipt, "replayed": False} == same[0] for receipt in same)
    replayed = [receipt["replayed"] for receipt in same]
    once = (arrived, equal, replayed) == (1, 3, [False, True, True])

    for number in range(3):
        ann.send(bob, "three times", f"a key of its own, {number}")
    thrice = len(bob.inbox()["messages"])

    try:
        ann.send(bob, "something else", "the same key")
        other = "sent"
    except Refused as refused:
        other = refused.code
    none = len(bob.inbox()["messages"])

    rows = [
        ("one key, sent three times", "1", str(arrived), f"{equal} equal receipts, {sum(replayed)} marked replayed"),
        ("three keys, one text", "3", str(thrice), ""),
        ("the first key, another text", "0", str(none), other),
    ]
    musts = [
        Must("one key three times", "1 message", f"{arrived} message", "1, and 3 equal receipts", once),
        Must("three keys", "3 messages", f"{thrice} messages", "3", thrice == 3),
        Must("a used key for another text", "", other, "refused", (none, other) == (0, "idempotency_key_reused")),
    ]
    return Result("Retries: what a key sends", ("sends", "expected", "messages", ""), rows, musts)
