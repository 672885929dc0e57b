"""Handles, mentions and routing: the pure rules, against examples and against what Hypothesis makes up."""

from __future__ import annotations

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from messaging import errors
from messaging.addressing import Candidate, Routing, route
from messaging.handles import MAX_MENTIONS, RESERVED, as_addressed, check_handle, clean_display_name, mentioned

HANDLES = ("bob", "bob-codex", "ann", "x9", "cy", "b" * 31)

# --- Handles and display names --------------------------------------------------------------------------------------


@pytest.mark.fault("A7")
@given(st.text(alphabet="ab9Z-_.@ \n\u0430\uff42\u200b\u0661", max_size=34))
def test_exactly_the_handles_of_the_published_rule_may_be_claimed(handle):
    letters = "abcdefghijklmnopqrstuvwxyz0123456789"
    allowed = 2 <= len(handle) <= 31 and handle[0] in letters and all(c in letters + "-" for c in handle)
    if allowed:
        assert check_handle(handle) == handle
    else:
        with pytest.raises(errors.Invalid) as refused:
            check_handle(handle)
        assert refused.value.code == "invalid_handle"


@pytest.mark.fault("A7")
@given(st.text(max_size=70))
def test_a_display_name_is_one_safe_line_or_it_is_refused(name):
    try:
        kept = clean_display_name(name)
    except errors.Invalid:
        return
    assert kept == kept.strip() == clean_display_name(kept)
    assert 1 <= len(kept) <= 64
    assert len(kept.splitlines()) == 1
    assert not re.search("[\u200b-\u200f\u202a-\u202e\u2066-\u2069\ufeff\x00-\x1f\x7f-\x9f]", kept)


# --- Mentions -------------------------------------------------------------------------------------------------------


def read_slowly(text):
    """The mentions of a text without code, found a character at a time."""

    def word(at):
        return 0 <= at < len(text) and (text[at].isalnum() or text[at] == "_")

    found = []
    for at, sign in enumerate(text):
        if sign != "@" or word(at - 1) or (at > 0 and text[at - 1] in "@./\\+%=&?#~-"):
            continue
        end = at + 1
        while end < len(text) and text[end].isascii() and (text[end].isalnum() or text[end] == "-"):
            end += 1
        handle = text[at + 1 : end].rstrip("-").lower()
        if not 2 <= len(handle) <= 31 or handle.startswith("-") or handle in RESERVED or word(end):
            continue
        dashed = text[end - 1] == "-"
        joined = text[end : end + 1] in tuple("@/\\") or (
            text[end : end + 1] in tuple(".+") and (word(end + 1) or text[end + 1 : end + 2] == "@")
        )
        if (dashed or not joined) and handle not in found:
            found.append(handle)
    return found


pieces = st.sampled_from(
    [
        "@",
        "@bob",
        "@Bob-Codex",
        "@all",
        "@x9",
        "@" + "b" * 31,
        "@@",
        "mailto:",
        "bob",
        "Z",
        "9",
        "é",
        "ſ",
        *"-_.,':/\\+&() \n",
    ]
)


@pytest.mark.fault("A1")
@pytest.mark.fault("A2")
@given(st.lists(pieces, max_size=12).map("".join))
@example("@bob@x9")
@example("@bob.@x9")
@example("@" + "b" * 32)
def test_mentions_are_what_a_slow_reader_finds(text):
    assert mentioned(text) == read_slowly(text)


@given(st.text(alphabet="@ab-\n `~>.\\1\r\t\u2028", max_size=300) | st.text(max_size=300))
def test_any_text_has_mentions_that_are_handles_each_once_and_never_reserved(text):
    found = mentioned(text)
    assert len(found) == len(set(found))
    assert all(re.fullmatch("[a-z0-9][a-z0-9-]{0,29}[a-z0-9]", handle) for handle in found)
    assert not RESERVED.intersection(found)


@given(st.text(alphabet="@ab-\n `~>.\\1", max_size=200))
def test_blanks_around_a_text_change_no_mention(text):
    assert mentioned(f" {text} ") == mentioned(f"\n{text}\n") == mentioned(text)


names = st.sampled_from(HANDLES)
ticks = st.integers(1, 4).map("`".__mul__)
fences = st.tuples(st.sampled_from("`~"), st.integers(3, 5)).map(lambda t: t[0] * t[1])
info = st.sampled_from(["", "py", " text", "\tsh x=1"])

# A block of Markdown, with those it mentions.
Blocks = st.SearchStrategy[tuple[str, list[str]]]
plain: Blocks = names.map(lambda h: (f"ask @{h}, please", [h]))
inline: Blocks = st.tuples(names, ticks, names).map(lambda t: (f"run {t[1]} @{t[0]} {t[1]} for @{t[2]}", [t[2]]))
stray: Blocks = st.tuples(ticks, names).map(lambda t: (f"the {t[0]} key, @{t[1]}", [t[1]]))
escaped: Blocks = names.map(lambda h: (f"a \\` and @{h} and `", [h]))
fenced: Blocks = st.tuples(fences, info, names, names).map(
    lambda t: (f"{t[0]}{t[1]}\n@{t[2]}\n\n  @{t[3]} `\n{t[0]}", [])
)
longer: Blocks = st.tuples(fences, names).map(
    lambda t: (f"{t[0]}\n@{t[1]}\n{t[0][:-1] if len(t[0]) > 3 else '``'}\n@{t[1]}\n{t[0]}{t[0]}", [])
)
quoted: Blocks = st.tuples(fences, names, names).map(lambda t: (f"> {t[0]}\n> @{t[1]}\n\nso @{t[2]}", [t[2]]))
in_a_list: Blocks = st.tuples(fences, names).map(
    lambda t: (f"- thus:\n\n      {t[0]}\n\n      @{t[1]}\n      {t[0]}", [])
)
item: Blocks = st.tuples(ticks, names).map(lambda t: (f"- a {t[0]}\n- @{t[1]} {t[0]}", [t[1]]))
shown_markdown: Blocks = names.map(lambda h: (f"```markdown\n- ```\n    ```\n@{h}\n```", []))
block: Blocks = st.one_of(plain, inline, stray, escaped, fenced, longer, quoted, in_a_list, item, shown_markdown)
unclosed: Blocks = st.tuples(fences, info, names).map(lambda t: (f"{t[0]}{t[1]}\n@{t[2]}\n\nand @{t[2]}", []))


@pytest.mark.fault("A3")
@given(st.lists(block, max_size=5), st.none() | unclosed, st.sampled_from(["\n", "\r\n", "\r"]))
def test_code_mentions_nobody_and_hides_nothing_around_it(blocks, last, newline):
    texts, expected = zip(*[*blocks, *([last] if last else [("end", [])])], strict=True)
    body = "\n\n".join(texts).replace("\n", newline)
    assert mentioned(body) == list(dict.fromkeys(h for handles in expected for h in handles))


LONG = 20_000
RUNS = " ".join("`" * (1 + n % 190) for n in range(210))


@pytest.mark.parametrize("space", ["", " ", "\n", "\n\n", "\r", "\t"])
@pytest.mark.parametrize(
    "unit", ["@ab", "@a-", "@ab--", "@ab.", ".@a", "``a", "```", "~~~", "\\`", "1.", RUNS, *"@`\\>-1#"]
)
def test_a_text_of_the_full_length_is_read_whatever_it_repeats(unit, space):
    """Were some text looked at again and again, one of these would outlast the time that a test has."""
    repeated = (unit + space) * (LONG // len(unit + space))
    for start in ("", "@", "`", "```\n", "- ", "\\"):
        assert mentioned(f"@bob\n\n{start}{repeated}")[0] == "bob"


# --- Routing --------------------------------------------------------------------------------------------------------

SENDER = 1


@st.composite
def situations(draw):
    """Live profiles, and whom a sender names: by `direct`, in `to`, and in the body."""
    live = draw(st.lists(st.sampled_from(HANDLES), unique=True))
    found = {
        handle: Candidate(
            profile_id=(number := HANDLES.index(handle) + 1),
            inbox_id=100 + number,
            handle=handle,
            kind="agent",
            paused=draw(st.booleans()),
            blocks_sender=draw(st.booleans()),
            may_read=draw(st.booleans()),
        )
        for handle in live
    }
    anybody = st.sampled_from([*HANDLES, "nobody", "no-one"])
    return {
        "sender_id": SENDER,
        "direct": draw(st.sampled_from([None, *found.values()])),
        "to": draw(st.lists(anybody, max_size=6)),
        "mentions": draw(st.lists(anybody, max_size=6, unique=True)),
        "found": found,
        "known": draw(st.lists(st.sampled_from(HANDLES), max_size=3)),
    }


def routes(routing: Routing) -> dict[str, str]:
    return {candidate.handle: by for candidate, by in routing.recipients}


@given(situations())
def test_each_recipient_gets_a_message_once_and_its_sender_never(situation):
    routing = route(**situation)
    inboxes = [candidate.inbox_id for candidate, _ in routing.recipients]
    assert len(inboxes) == len(set(inboxes))
    for candidate, _ in routing.recipients:
        assert candidate.profile_id != SENDER
        assert candidate.may_read
        assert not candidate.paused
        assert not candidate.blocks_sender


@given(situations())
def test_the_strongest_route_counts_direct_before_to_before_mention(situation):
    for handle, by in routes(route(**situation)).items():
        if situation["direct"] and situation["direct"].handle == handle:
            assert by == "direct"
        else:
            assert by == ("to" if handle in situation["to"] else "mention")


@given(situations())
def test_everybody_named_in_to_is_either_delivered_or_skipped_with_a_reason(situation):
    routing = route(**situation)
    skipped = [s["handle"] for s in routing.skipped]
    assert len(skipped) == len(set(skipped)) or situation["direct"]
    for handle in situation["to"]:
        assert (handle in routes(routing)) != (handle in skipped)
    reasons = {s["handle"]: s["reason"] for s in routing.skipped}
    for handle in situation["to"]:
        candidate = situation["found"].get(handle)
        if candidate is None:
            assert reasons[handle] == "unknown_handle"
        elif candidate.profile_id == SENDER:
            assert reasons[handle] == "self"
        elif not candidate.may_read:
            assert reasons[handle] == "not_a_member"


@given(situations())
def test_everybody_mentioned_is_delivered_hinted_at_skipped_or_the_sender(situation):
    routing = route(**situation)
    hinted = [handle for hint in routing.hints for handle in hint["handles"]]
    told = {*routes(routing), *hinted, *(s["handle"] for s in routing.skipped), HANDLES[SENDER - 1]}
    assert told.issuperset(situation["mentions"])


@pytest.mark.fault("A4")
@given(situations(), st.lists(st.text("abc", min_size=2, max_size=5).map("zz-".__add__), min_size=1, unique=True))
def test_mentions_of_nobody_change_nothing_but_the_hints(situation, unknown):
    routing = route(**{**situation, "mentions": [*situation["mentions"], *unknown]})
    without = route(**situation)
    assert routing.recipients == without.recipients
    assert routing.skipped == without.skipped
    (hint,) = [h for h in routing.hints if h["code"] == "unresolved_mention"]
    assert set(unknown) <= set(hint["handles"])


def test_of_more_than_fifty_mentions_the_first_fifty_count_and_the_others_are_named():
    found = {f"a{n}": Candidate(n + 2, n + 2, f"a{n}", "agent", False, False, True) for n in range(60)}
    routing = route(sender_id=SENDER, direct=None, to=(), mentions=list(found), found=found)
    assert list(routes(routing)) == list(found)[:MAX_MENTIONS]
    (hint,) = routing.hints
    assert (hint["code"], hint["handles"]) == ("too_many_mentions", list(found)[MAX_MENTIONS:])


@pytest.mark.parametrize("written", ["bob", "@bob", "Bob", "@BOB", " @bob "])
def test_an_address_is_accepted_with_an_at_sign_and_in_upper_case(written):
    assert as_addressed(written) == "bob"
