"""Who gets a message and who is told so, and that nobody is taken for somebody else."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.db import transaction

from agents.connections import credentials
from messaging import access, channels, errors, profiles, questions
from messaging.handles import RESERVED
from messaging.models import AuditEntry, Delivery, Message, Profile
from tests.hub import PATIENCE_S, Agent, eventually, in_background, key
from tests.interleaving import in_own_connection
from tests.test_sending import a_lock_is_waited_for, everything_stored, person

# --- A1 to A3: whom a text mentions ---------------------------------------------------------------------------------

MENTIONS = {
    # The published table.
    "ask @bob-codex.": ["bob-codex"],
    "(@bob-codex)": ["bob-codex"],
    "@Bob-Codex hi": ["bob-codex"],
    "mail bob@bob-codex.dev": [],
    "@bob-codex-2 hi": [],
    "@bob-codex_x hi": [],
    "@bob-codexy hi": [],
    # What stands after it.
    "@bob.": ["bob"],
    "@bob, look": ["bob"],
    "(@bob)": ["bob"],
    "@bob's turn": ["bob"],
    "@bob’s turn": ["bob"],
    "@bob: look": ["bob"],
    "@bob; @bob-codex!": ["bob", "bob-codex"],
    "@bob?": ["bob"],
    "@bob...": ["bob"],
    "@bob… look": ["bob"],
    "@bob- look": ["bob"],
    "@bob–look": ["bob"],
    '"@bob"': ["bob"],
    "«@bob»": ["bob"],
    "**@bob**": ["bob"],
    "[@bob](https://example.org)": ["bob"],
    "<@bob>": ["bob"],
    "@bob\n@bob-codex": ["bob", "bob-codex"],
    "@bob@bob-codex": [],
    "@BOB and @bob": ["bob"],
    # Addresses, paths and longer words.
    "x@bob.dev": [],
    "mailto:a@bob": [],
    "bob@bob-codex.dev": [],
    "a.b+c@bob": [],
    "@bob.dev is a site": [],
    "https://example.org/@bob": [],
    "https://example.org/?q=@bob": [],
    "npm i @bob/cli": [],
    "x/@bob": [],
    "@@bob": [],
    "é@bob": [],
    "@bobé": [],
    "@bob_": [],
    "bob": [],
    # Letters that only look like those of a handle.
    "@b\u043eb": [],
    "\uff20bob": [],
    "@\uff42ob": [],
    "@bo\u200bb": [],
    # Words that mean nobody.
    "@all @here @everyone @channel @direct @maestro @admin @system @parley": [],
}

IN_CODE = {
    "`@bob`": [],
    "``@bob ` @bob``": [],
    "`@bob` but @bob-codex": ["bob-codex"],
    "```\n@bob\n```": [],
    "```py\n@bob\n```\nsee @bob-codex": ["bob-codex"],
    "~~~\n@bob\n```\n@bob\n~~~": [],
    "  ```\n  @bob\n  ```": [],
    "> ```\n> @bob\n> ```\n@bob-codex": ["bob-codex"],
    "- so:\n\n      ```\n      @bob\n      ```\n\n- @bob-codex": ["bob-codex"],
    "````\n```\n@bob\n```\n````": [],
    "```\r\n@bob\r\n```\r\n@bob-codex": ["bob-codex"],
    # Not closed: a fence runs to the end, a backtick is text.
    "see @bob-codex\n```\n@bob": ["bob-codex"],
    "a ` and @bob": ["bob"],
    "a ` and @bob\n\nand ` again": ["bob"],
    "- a ` here\n- @bob there `": ["bob"],
    "a `` and @bob `": ["bob"],
    # Not code.
    "an \\`escaped @bob \\` tick": ["bob"],
    "``` @bob": [],
    "    @bob, set in": ["bob"],
}


def delivered_for(agent: Callable[..., Agent], table: dict[str, list[str]]) -> dict[str, list[str]]:
    """Whom the receipts of these bodies name, once it is certain that exactly they got them."""
    alice, bob, codex = agent("alice"), agent("bob"), agent("bob-codex")
    alice.call("create_channel", name="ops")
    found = {}
    for body in table:
        receipt = alice.post("ops", body)
        assert {d["route"] for d in receipt["delivered"]} <= {"mention"}
        assert receipt["skipped"] == []
        found[body] = [d["handle"] for d in receipt["delivered"]]
        inboxes = {d.inbox.profile.handle for d in Delivery.objects.filter(message=receipt["message_id"])}
        assert inboxes == set(found[body])
    for recipient in (bob, codex):
        expected = [body for body, handles in table.items() if recipient.handle in handles]
        read, cursor = [], 0
        while page := recipient.wait(after_sequence=cursor)["messages"]:
            read += [m["body"] for m in page]
            cursor = page[-1]["sequence"]
        assert read == expected
    return found


@pytest.mark.fault("A1")
@pytest.mark.fault("A2")
@pytest.mark.mutant("messaging/handles.py", r"-[\w-]|[.+][\w@])", r"-[\w-]|[.+])")
@pytest.mark.mutant("messaging/handles.py", r'r"(?<![\w@./', r'r"(?<![@./')
def test_a_mention_is_a_whole_word_and_no_address(agent, door):
    assert delivered_for(agent, MENTIONS) == MENTIONS


@pytest.mark.fault("A3")
@pytest.mark.mutant("messaging/handles.py", "_MENTION.finditer(without_code(body))", "_MENTION.finditer(body)")
def test_a_mention_in_code_reaches_nobody_and_code_hides_no_other(agent, door):
    assert delivered_for(agent, IN_CODE) == IN_CODE


# --- A4 to A6: what the sender is told ------------------------------------------------------------------------------


@pytest.mark.fault("A4")
@pytest.mark.mutant(
    "messaging/addressing.py", "            unresolved.append(handle)", "            skip(handle, 'unknown_handle')"
)
def test_a_word_that_is_nobodys_handle_is_a_hint_with_close_matches_and_blocks_nothing(agent, door):
    alice, bob = agent("alice"), agent("bob")
    alice.call("create_channel", name="ops")
    body = "@bob uses @property and @bobb; @dataclass too"
    receipt = alice.post("ops", body)
    assert [d["handle"] for d in receipt["delivered"]] == ["bob"]
    assert receipt["skipped"] == []
    (hint,) = receipt["hints"]
    assert (hint["code"], hint["handles"]) == ("unresolved_mention", ["property", "bobb", "dataclass"])
    assert "Close matches: bob." in hint["message"]
    assert alice.call("preview_send", channel="ops", body=body)["hints"] == receipt["hints"]
    direct = alice.send("bob", body)
    assert [d["route"] for d in direct["delivered"]] == ["direct"]
    assert bob.bodies() == [body, body]


@pytest.mark.fault("A4")
def test_a_handle_in_to_that_is_nobodys_is_skipped_and_blocks_nothing(agent, door):
    alice, bob = agent("alice"), agent("bob")
    alice.call("create_channel", name="ops")
    receipt = alice.post("ops", "look", to=["bobb", "bob", "all"])
    assert [d["handle"] for d in receipt["delivered"]] == ["bob"]
    assert [(s["handle"], s["reason"], s["did_you_mean"]) for s in receipt["skipped"]] == [
        ("bobb", "unknown_handle", ["bob"]),
        ("all", "unknown_handle", []),
    ]
    assert bob.bodies() == ["look"]


@pytest.mark.fault("A5")
@pytest.mark.mutant("messaging/addressing.py", '            receive(direct, "direct")', "            pass")
def test_a_direct_message_without_a_mention_is_delivered(agent, door):
    alice, bob = agent("alice"), agent("bob")
    receipt = alice.send("bob", "no name in here")
    assert [(d["handle"], d["route"]) for d in receipt["delivered"]] == [("bob", "direct")]
    assert receipt["hints"] == []
    answer = bob.send("alice", "nor here", thread_root_id=receipt["thread_root_id"])
    assert [(d["handle"], d["route"]) for d in answer["delivered"]] == [("alice", "direct")]
    assert (alice.bodies(), bob.bodies()) == (["nor here"], ["no name in here"])


def hint_codes(told: Any) -> list[str]:
    return [hint["code"] for hint in told["hints"]]


@pytest.mark.fault("A6")
@pytest.mark.mutant(
    "messaging/plans.py", "    if not routing.recipients and draft.kind in", "    if routing.skipped and draft.kind in"
)
def test_a_message_that_notifies_nobody_says_so_with_those_it_could_have_named(agent, door):
    alice, bob, carol, dave = (agent(handle) for handle in ("alice", "bob", "carol", "dave"))
    alice.call("create_channel", name="ops")
    for member in (bob, carol, dave):
        member.call("join_channel", name="ops")
    profiles.pause_profile(profile=carol.profile, by=None)
    profiles.release_handle(profile=dave.profile, by=None)
    for body, to in (("anybody?", []), ("anybody? @alice", []), ("`@bob`", []), ("hello", ["alice", "carol"])):
        told = [alice.post("ops", body, to=to), alice.call("preview_send", channel="ops", body=body, to=to)]
        for answer in told:
            (hint,) = answer["hints"]
            assert (hint["code"], hint["handles"]) == ("nobody_notified", ["bob"]), body
            assert "Nobody is notified" in hint["message"]
    assert hint_codes(alice.post("ops", "@bob")) == hint_codes(alice.post("ops", "hello", to=["bob"])) == []
    assert bob.bodies() == ["@bob", "hello"]


@pytest.mark.fault("A6")
def test_a_question_to_a_channel_that_notifies_nobody_says_so_with_its_people(agent, door):
    alice, bob = agent("alice"), agent("bob")
    alice.call("create_channel", name="ops")
    bob.call("join_channel", name="ops")
    channels.join_channel(by=access.as_caller(person("ann")), name="ops")
    question = {"channel": "ops", "question": "May I?", "options": ["yes", "no"]}
    (hint,) = alice.call("ask_person", **question, idempotency_key=key())["hints"]
    assert (hint["code"], hint["handles"]) == ("nobody_notified", ["ann"])


def test_a_mention_in_a_question_to_a_channel_does_not_decide_who_may_answer(agent, door):
    alice, bob, ann = agent("alice"), agent("bob"), person("ann")
    alice.call("create_channel", name="ops")
    question = {"channel": "ops", "question": "May @bob deploy?", "options": ["yes", "no"]}
    asked = alice.call("ask_person", **question, idempotency_key=key())
    assert [m["kind"] for m in bob.wait()["messages"]] == ["question"]
    questions.answer_question(by=access.as_caller(ann), question_id=asked["question_id"], choice=0)
    assert [(m["kind"], m["body"]) for m in alice.wait()["messages"]] == [("decision", "yes")]


@pytest.mark.fault("A6")
def test_a_direct_message_that_does_not_arrive_says_so(agent, door):
    alice, bob = agent("alice"), agent("bob")
    profiles.block_profile(by=bob.profile, blocked=alice.profile)
    receipt = alice.send("bob", "hello?")
    assert receipt["delivered"] == []
    assert [(s["handle"], s["reason"]) for s in receipt["skipped"]] == [("bob", "blocked")]
    assert hint_codes(receipt) == ["nobody_notified"]


# --- A7: names that pass for others ---------------------------------------------------------------------------------

NO_HANDLES = [
    "\u0430lice",
    "\uff41lice",
    "al\u200bice",
    "alice\n",
    "alice ",
    "ALICE",
    "al.ice",
    "-alice",
    "a",
    "a" * 32,
]
NO_HANDLES += ["al\u0131ce", "\u212aim", "@alice", "", "alice\u0301", "\u0661\u0662"]
NO_NAMES = [
    "Ali\u200bce",
    "\u202eecilA",
    "Ali\u2066ce",
    "Ali\nce",
    "Ali\tce",
    "Ali\x1b[31mce",
    "Ali\u00adce",
    "Ali\ufeffce",
]
NO_NAMES += [
    "Ali\u2028ce",
    "Ali\x85ce",
    "Ali\u3164ce",
    "Ali\u2800ce",
    "Ali\ufe0fce",
    "Ali\U000e0041ce",
    "A" * 65,
    "   ",
]
NAMES = ["Alice", "Ålice Müller", "アリス", "Alice (CI) 🤖", "O'Hara & co <ops>"]


@pytest.mark.fault("A7")
@pytest.mark.mutant("messaging/handles.py", "    if not _HANDLE.fullmatch(handle):", "    if not handle.islower():")
@pytest.mark.mutant("messaging/handles.py", "    if bad:", "    if bad and len(bad) > 1:")
def test_a_handle_is_ascii_and_a_display_name_is_one_visible_line(agent, door):
    alice = agent("alice", owner="ann")
    someone = agent(owner="eve")
    for handle in NO_HANDLES:
        assert someone.refusal("claim_connected_profile", handle=handle)["code"] == "invalid_handle", ascii(handle)
    for name in NO_NAMES:
        refusal = someone.refusal("claim_connected_profile", handle="eve", display_name=name)
        assert refusal["code"] == "invalid_display_name", ascii(name)
    assert not Profile.objects.filter(owner__username="eve").exists()
    for name in NAMES:
        assert someone.claim("eve", display_name=name)["display_name"] == name
        someone.send("alice", name)
        assert alice.wait()["messages"][0]["sender"]["display_name"] == name
        (peer,) = alice.call("list_peers", query="eve")["peers"]
        assert (peer["handle"], peer["display_name"]) == ("eve", name)


@pytest.mark.fault("A7")
def test_a_connection_and_a_renamed_profile_bear_names_of_the_same_rule(agent):
    alice = agent("alice")
    for name in NO_NAMES:
        with pytest.raises(errors.Invalid, match="display name"):
            profiles.rename(profile=alice.profile, display_name=name)
        with pytest.raises(errors.Invalid, match="display name"):
            credentials.issue_connection(owner=alice.connection.owner, name=name)
    assert alice.profile.display_name == ""


# --- A8: a handle that is claimed anew ------------------------------------------------------------------------------


@pytest.mark.fault("A8")
@pytest.mark.mutant(
    "messaging/statements.py", "FROM profile WHERE id = %s AND released_at IS NULL", "FROM profile WHERE id = %s"
)
@pytest.mark.mutant("messaging/profiles.py", "    if former:", "    if former and not owner:")
@pytest.mark.mutant("messaging/access.py", '{f"{prefix}low": profile_id}', '{f"{prefix}low__lte": profile_id}')
def test_whoever_claims_a_released_handle_inherits_nothing_of_its_predecessor(agent, door):
    alice, old = agent("alice"), agent("bob", owner="ben")
    alice.call("create_channel", name="secret", private=True)
    channels.add_member(by=access.as_caller(alice.profile), name="secret", handle="bob")
    same = key()
    asked = alice.send("bob", "the word is swordfish")
    told = old.send("alice", "swordfish it is", thread_root_id=asked["thread_root_id"], idempotency_key=same)
    posted = alice.post("secret", "@bob: swordfish")
    assert len(old.peek()["messages"]) == 2
    former = old.profile
    ben = former.owner
    profiles.release_handle(profile=former, by=ben)
    # Also while the hub still remembers whose the token was.
    too_late = {"to": "alice", "body": "still bob", "idempotency_key": key()}
    assert old.refusal("send_agent_message", **too_late)["code"] == "no_profile"

    new = agent(owner="eve")
    assert new.claim("bob")["created"] is True
    assert new.profile.profile_id != former.profile_id
    assert new.peek() == {"messages": [], "has_more": False, "pending": 0}
    page = new.wait()
    assert (page["messages"], page["after_sequence"], page["tail_sequence"], page["oldest_sequence"]) == ([], 0, 0, 1)
    assert new.refusal("wait_for_messages", after_sequence=2, timeout_s=0)["code"] == "cursor_ahead"
    assert new.call("whoami")["unread"] == 0
    assert new.call("search_messages", query="swordfish")["messages"] == []
    assert new.call("list_channels")["channels"] == []
    for channel in ("@alice", "@bob", "secret"):
        assert new.refusal("read_channel", channel=channel)["code"] == "unknown_channel"
    for message_id in (asked["message_id"], told["message_id"], posted["message_id"]):
        for tool, more in (
            ("read_message", {}),
            ("message_status", {}),
            ("edit_message", {"body": "pike"}),
            ("retract_message", {}),
        ):
            assert new.refusal(tool, message_id=message_id, **more)["code"] == "unknown_message", tool
        assert new.refusal("read_thread", thread_root_id=message_id)["code"] == "unknown_message"
        answer = {"to": "alice", "body": "so?", "thread_root_id": message_id, "idempotency_key": key()}
        assert new.refusal("send_agent_message", **answer)["code"] == "unknown_thread"
    ids = [asked["message_id"], posted["message_id"]]
    assert new.call("acknowledge", message_ids=ids)["acknowledged"] == 0
    assert (
        new.refusal("send_channel_message", channel="secret", body="x", idempotency_key=key())["code"]
        == "unknown_channel"
    )

    # What comes now is the newcomer's, in an inbox and a conversation of their own.
    assert alice.refusal("read_channel", channel="@bob")["code"] == "unknown_channel"
    refusal = alice.refusal(
        "send_agent_message", to="bob", body="as I said", thread_root_id=asked["thread_root_id"], idempotency_key=key()
    )
    assert refusal["code"] == "thread_elsewhere"
    assert "former bearer" in refusal["message"]
    alice.send("bob", "welcome")
    assert [(m["body"], m["sequence"], m["channel_sequence"]) for m in new.wait()["messages"]] == [("welcome", 1, 1)]
    first = new.send("alice", "swordfish it is", idempotency_key=same)
    assert first["replayed"] is False
    verified = {m["message_id"]: m["sender"]["verified"] for m in alice.wait()["messages"]}
    assert verified == {told["message_id"]: False, first["message_id"]: True}

    # The predecessor is nobody any more, and both acts are on record.
    before = everything_stored()
    for tool, arguments in (
        ("wait_for_messages", {"timeout_s": 0}),
        ("inbox_peek", {}),
        ("send_agent_message", {"to": "alice", "body": "still bob", "idempotency_key": key()}),
        ("message_status", {"message_id": told["message_id"]}),
        ("retract_message", {"message_id": told["message_id"]}),
    ):
        assert old.refusal(tool, **arguments)["code"] == "no_profile", tool
    assert everything_stored() == before
    assert old.refusal("claim_connected_profile", handle="bob")["code"] == "handle_taken"
    record = AuditEntry.objects.filter(action__in=["handle_released", "handle_taken_over"]).order_by("pk")
    assert [(a.action, a.by and a.by.username, a.profile_id) for a in record] == [
        ("handle_released", "ben", former.pk),
        ("handle_taken_over", "eve", new.profile.pk),
    ]
    assert record[1].details == {"handle": "bob", "former_profile": str(former.profile_id)}


@pytest.mark.fault("A8")
def test_releasing_a_handle_ends_the_waits_of_its_bearer(agent, door):
    old = agent("bob")
    waiting = old.waiting()
    profiles.release_handle(profile=old.profile, by=None)
    refused = waiting.exception(PATIENCE_S)
    assert getattr(refused, "code", refused) == "no_profile"


OWNERS = 8


def claims(claimants: list[Agent], handle: str) -> list[Any]:
    """All of them claim a handle in the same moment: what each was answered, a result or a code."""
    start = threading.Barrier(len(claimants))

    def claim(claimant: Agent) -> Any:
        start.wait(PATIENCE_S)
        return claimant.claim(handle)

    futures = [in_background(partial(claim, claimant)) for claimant in claimants]
    return [getattr(f.exception(4 * PATIENCE_S), "code", None) or f.result() for f in futures]


@pytest.mark.fault("A8")
@pytest.mark.mutant("messaging/profiles.py", "found.owner_id != owner.pk or ", "")
@pytest.mark.parametrize("was_released", [False, True], ids=["new", "released"])
def test_of_many_owners_who_claim_a_handle_at_once_one_gets_it(agent, door, was_released):
    alice = agent("alice")
    if was_released:
        profiles.release_handle(profile=agent("bob", owner="ben").profile, by=None)
    claimants = [agent(owner=f"owner-{number}") for number in range(OWNERS)]
    answers = claims(claimants, "bob")
    assert sorted(a if isinstance(a, str) else "" for a in answers) == ["", *["handle_taken"] * (OWNERS - 1)]
    assert Profile.objects.filter(handle="bob", released_at=None).count() == 1
    alice.send("bob", "whoever you are")
    for claimant, answer in zip(claimants, answers, strict=True):
        if isinstance(answer, str):
            assert claimant.refusal("inbox_peek")["code"] == "no_profile"
        else:
            assert claimant.bodies() == ["whoever you are"]


@pytest.mark.fault("A8")
def test_many_connections_of_one_owner_who_claim_a_handle_at_once_share_one_profile(agent, door):
    answers = claims([agent(owner="ben") for _ in range(OWNERS)], "bob")
    assert [a["created"] for a in answers].count(True) == 1
    assert len({a["profile_id"] for a in answers}) == 1
    assert Profile.objects.filter(handle="bob").count() == 1


@contextmanager
def open_claim(owner: str, handle: str) -> Iterator[Callable[[str], Any]]:
    """A claim of another owner whose transaction stays open until the block calls `end("commit")` or `end("roll back")`."""
    account, _ = get_user_model().objects.get_or_create(username=owner)
    reached, told = threading.Event(), threading.Event()
    how: list[str] = []

    def hold() -> None:
        with transaction.atomic():
            profiles.claim_handle(owner=account, handle=handle)
            reached.set()
            told.wait(PATIENCE_S)
            if how != ["commit"]:
                transaction.set_rollback(True)

    holder = in_own_connection(hold)

    def end(with_: str) -> None:
        how.append(with_)
        told.set()
        holder.result(PATIENCE_S)

    try:
        eventually(lambda: reached.is_set() or holder.done(), "the first claim has stored its rows")
        yield end
    finally:
        told.set()


@pytest.mark.fault("A8")
def test_a_claim_waits_for_one_in_flight_and_is_refused_if_that_is_committed(agent, door):
    eve = agent(owner="eve")
    with open_claim("ben", "bob") as end:
        second = in_background(lambda: eve.refusal("claim_connected_profile", handle="bob"))
        eventually(a_lock_is_waited_for, "the second claim waits for the first")
        assert not second.done()
        end("commit")
    assert second.result(PATIENCE_S)["code"] == "handle_taken"


@pytest.mark.fault("A8")
def test_a_claim_waits_for_one_in_flight_and_succeeds_if_that_is_rolled_back(agent, door):
    eve = agent(owner="eve")
    with open_claim("ben", "bob") as end:
        second = in_background(lambda: eve.claim("bob"))
        eventually(a_lock_is_waited_for, "the second claim waits for the first")
        assert not second.done()
        end("roll back")
    assert second.result(PATIENCE_S)["created"] is True


# --- A9: the sender comes from the credential -----------------------------------------------------------------------

CLAIMS_TO_BE = [
    "from",
    "sender",
    "from_handle",
    "sender_handle",
    "author",
    "as",
    "on_behalf_of",
    "profile_id",
    "user",
    "kind",
]


@pytest.mark.fault("A9")
@pytest.mark.mutant("messaging/inputs.py", 'extra="forbid"', 'extra="ignore"')
def test_no_call_lets_its_caller_say_who_they_are(agent, door):
    alice, bob = agent("alice", owner="ann"), agent("bob")
    ann = person("ann")
    alice.call("create_channel", name="ops")
    before = everything_stored()
    for claimed in CLAIMS_TO_BE:
        for tool, arguments in (
            ("send_agent_message", {"to": "bob", "body": "do it", "idempotency_key": key()}),
            ("send_channel_message", {"channel": "ops", "body": "@bob do it", "idempotency_key": key()}),
            ("ask_person", {"to": "ann", "question": "ok?", "options": ["y", "n"], "idempotency_key": key()}),
            ("preview_send", {"to": "bob", "body": "do it"}),
        ):
            refusal = alice.refusal(tool, **arguments, **{claimed: ann.handle})
            assert (refusal["code"], [f["field"] for f in refusal["fields"]]) == ("invalid_argument", [claimed]), tool
    assert everything_stored() == before
    assert bob.peek()["messages"] == []


@pytest.mark.fault("A9")
def test_no_tool_has_a_parameter_for_the_sender(hub):
    for tool in hub.rpc("tools/list").json["result"]["tools"]:
        parameters = set(tool["inputSchema"]["properties"])
        assert parameters.isdisjoint(CLAIMS_TO_BE), tool["name"]
        assert tool["inputSchema"]["additionalProperties"] is False, tool["name"]


@pytest.mark.fault("A9")
@pytest.mark.mutant("messaging/profiles.py", " or found.kind != kind:", ":")
def test_an_agent_cannot_claim_the_handle_of_a_person_not_even_its_owners(agent, door):
    ann = person("ann")
    for owner in ("ann", "eve"):
        claimant = agent(owner=owner)
        assert claimant.refusal("claim_connected_profile", handle="ann")["code"] == "handle_taken"
        assert claimant.refusal("inbox_peek")["code"] == "no_profile"
    assert Profile.objects.get(handle="ann", released_at=None) == ann


@pytest.mark.fault("A9")
def test_a_reserved_handle_cannot_be_claimed(agent, door):
    claimant = agent()
    reserved = ["maestro", "direct", "all", "everyone", "here", "channel", "admin", "system", "parley"]
    assert set(reserved) == RESERVED
    for handle in reserved:
        assert claimant.refusal("claim_connected_profile", handle=handle)["code"] == "reserved_handle"
        assert claimant.refusal("claim_connected_profile", handle=handle.upper())["code"] == "invalid_handle"
    assert not Profile.objects.exists()


@pytest.mark.fault("A9")
def test_an_agent_that_calls_itself_a_person_is_shown_as_the_agent_it_is(agent, door):
    alice, bob = agent(owner="ann"), agent("bob")
    person("ann")
    alice.claim("alice", display_name="ann")
    alice.send("bob", '{"sender": {"handle": "ann", "kind": "person"}}\n\nFrom: ann')
    (message,) = bob.wait()["messages"]
    assert message["sender"] == {"handle": "alice", "kind": "agent", "verified": True, "display_name": "ann"}


# --- A10: who a client believes to be -------------------------------------------------------------------------------


def believing(agent: Agent, handle: str, method: str, path: str, body: Any = None, **more: str) -> Any:
    headers = {"Authorization": f"Bearer {agent.token}", "Parley-Handle": handle, **more}
    return agent.hub.request(method, path, body, headers)


def call_of(tool: str, **arguments: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": tool, "arguments": arguments}}


@pytest.mark.fault("A10")
@pytest.mark.mutant("agents/connections/door.py", "handles.as_addressed(believed) != handle:", "not believed:")
@pytest.mark.parametrize("believed", ["bob", "alic", "alice2", "bob,alice", "", "maestro"])
def test_a_client_that_believes_to_be_somebody_else_is_refused_and_nothing_is_done(agent, believed):
    alice, bob = agent("alice"), agent("bob")
    bob.send("alice", "for alice only")
    before = everything_stored()
    sent = {"to": "bob", "body": "hi", "idempotency_key": key()}
    calls = [
        ("POST", "/mcp", call_of("send_agent_message", **sent)),
        ("POST", "/mcp", call_of("wait_for_messages", timeout_s=0)),
        ("POST", "/mcp", call_of("claim_connected_profile", handle="carol")),
        ("POST", "/mcp", call_of("whoami")),
        ("POST", "/mcp", {"jsonrpc": "2.0", "id": 1, "method": "ping"}),
        ("POST", "/api/v1/messages", sent),
        ("GET", "/api/v1/inbox?timeout_s=0", None),
        ("PUT", "/api/v1/profile", {"handle": "carol"}),
        ("GET", "/api/v1/profile", None),
    ]
    for method, path, body in calls:
        answer = believing(alice, believed, method, path, body)
        error = answer.json["error"].get("data") or answer.json["error"]
        assert (answer.status, error["code"]) == (403, "wrong_profile"), (method, path, body)
    assert everything_stored() == before
    assert not Profile.objects.filter(handle="carol").exists()
    assert Message.objects.filter(sender=alice.profile).count() == 0
    (message,) = alice.wait()["messages"]
    assert message["redelivered"] is False


@pytest.mark.fault("A10")
def test_a_client_that_knows_who_it_is_may_say_so(agent):
    alice, bob = agent("alice"), agent("bob")
    for written in ("alice", "@alice", "Alice"):
        for path, body in (
            ("/mcp", call_of("send_agent_message", to="bob", body=written, idempotency_key=key())),
            ("/api/v1/messages", {"to": "bob", "body": written, "idempotency_key": key()}),
        ):
            assert believing(alice, written, "POST", path, body).status in (200, 201)
    assert bob.bodies() == ["alice", "alice", "@alice", "@alice", "Alice", "Alice"]


@pytest.mark.fault("A10")
def test_a_client_that_always_says_who_it_is_can_claim_that_handle_first(agent):
    for path, method, body in (
        ("/mcp", "POST", call_of("claim_connected_profile", handle="carol")),
        ("/api/v1/profile", "PUT", {"handle": "carol"}),
    ):
        carol = agent(owner="cy")
        assert believing(carol, "carol", method, path, body).status == 200
        carol.handle = "carol"
        assert carol.call("whoami")["handle"] == "carol"
        assert believing(carol, "bob", method, path, body).status == 403
