"""Handles and mentions: the one rule that decides who is named in a text.

Pure functions without database or Django models. The canvas composer reads `MENTION_RULE`, so that the browser and the
server cannot drift apart. A handle is ASCII, so it cannot imitate another by look-alike letters; display names are free
text on one safe line (`clean_display_name`). Who of those named exists is decided in `addressing`.
"""

from __future__ import annotations

import re
import unicodedata

from messaging import errors

# 2-31 characters: the published limit of the network whose tool names and limits Parley keeps.
HANDLE_RULE = r"^[a-z0-9][a-z0-9-]{1,30}$"
_HANDLE = re.compile(r"[a-z0-9][a-z0-9-]{1,30}")

# Words that mean a group, a route or the house itself: nobody may bear them, and a mention of one names nobody.
RESERVED = frozenset({"maestro", "direct", "all", "everyone", "here", "channel", "admin", "system", "parley"})

# A person does not address more by name; beyond it a text is a list, and each name costs a look-up.
MAX_MENTIONS = 50

# Longer names break lists and prompts.
MAX_DISPLAY_NAME = 64

# Before the @: nothing that would make it an e-mail address, a path or a longer word.
# After the handle: nothing that would continue it, be it a letter, a digit, `_`, a dash, or an `@` or `.x` of an address.
MENTION_RULE = r"(?<![\w@./\\+%=&?#~-])@([A-Za-z0-9][A-Za-z0-9-]{1,30})(?![\w@/\\]|-[\w-]|[.+][\w@])"
_MENTION = re.compile(MENTION_RULE)
_FENCE = re.compile(r"^ {0,3}(`{3,}|~{3,})")
_BACKTICKS = re.compile(r"`+")


def check_handle(handle: str) -> str:
    """Returns a handle that may be claimed, or raises `invalid_handle` / `reserved_handle`. Upper case is refused here."""
    if not _HANDLE.fullmatch(handle):
        raise errors.Invalid(
            "A handle has 2 to 31 characters: a-z, 0-9 and -, the first not a dash; no upper case. Choose another.",
            code="invalid_handle",
            rule=HANDLE_RULE,
        )
    if handle in RESERVED:
        raise errors.Invalid(
            f"The handle {handle!r} is reserved. Choose another.", code="reserved_handle", reserved=sorted(RESERVED)
        )
    return handle


def as_addressed(written: str) -> str:
    """The handle meant by what somebody wrote in an address field: a leading @ and upper case are accepted there."""
    return written.strip().removeprefix("@").lower()


def clean_display_name(name: str) -> str:
    """A display name as one safe line of at most 64 characters, or raises `invalid_display_name`.

    Control, zero-width and bidirectional characters are refused, as they let one name pass for another or leave its line.
    """
    name = unicodedata.normalize("NFC", name).strip()
    if not 1 <= len(name) <= MAX_DISPLAY_NAME:
        raise errors.Invalid(
            f"A display name has 1 to {MAX_DISPLAY_NAME} characters.",
            code="invalid_display_name",
            limit=MAX_DISPLAY_NAME,
        )
    # Cc control, Cf format (zero-width, bidi, soft hyphen, tags), Cs surrogate, Co private, Cn unassigned, Zl/Zp line breaks.
    bad = [c for c in name if unicodedata.category(c) in {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"} or c in _BLANK]
    if bad:
        raise errors.Invalid(
            "A display name is one line without control, zero-width or bidirectional characters.",
            code="invalid_display_name",
            refused=[f"U+{ord(c):04X}" for c in dict.fromkeys(bad)],
        )
    return name


# Letters by category, yet drawn as nothing: Hangul fillers, Khmer inherent vowels, Braille blank, variation selectors.
_BLANK = frozenset("\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0\u034f") | frozenset(
    chr(c) for c in range(0xFE00, 0xFE10)
)


def without_code(body: str) -> str:
    """The text with code replaced by blanks. An unclosed fence runs to the end; an unclosed backtick is text."""
    kept: list[str] = []
    fence = ""
    for line in body.splitlines(keepends=True):
        match = _FENCE.match(line)
        if fence:
            closes = (
                match and match[1][0] == fence[0] and len(match[1]) >= len(fence) and not line[match.end() :].strip()
            )
            if closes:
                fence = ""
            kept.append("\n")
        elif match and not (match[1][0] == "`" and "`" in line[match.end() :]):
            fence = match[1]
            kept.append("\n")
        else:
            kept.append(line)
    return _without_spans("".join(kept))


def _without_spans(text: str) -> str:
    """Inline code is a run of backticks up to the next run of the same length (CommonMark 6.1); each run is looked at once."""
    runs = list(_BACKTICKS.finditer(text))
    later: dict[int, list[int]] = {}
    for i in range(len(runs) - 1, -1, -1):
        later.setdefault(len(runs[i][0]), []).append(i)
    out: list[str] = []
    at = i = 0
    while i < len(runs):
        same = later[len(runs[i][0])]
        while same and same[-1] <= i:
            same.pop()
        if not same:
            i += 1
            continue
        close = same[-1]
        out += [text[at : runs[i].start()], " "]
        at = runs[close].end()
        i = close + 1
    out.append(text[at:])
    return "".join(out)


def mentioned(body: str) -> list[str]:
    """The handles named in a text, lower-cased, each once, in order of appearance, without reserved words and code.

    May be longer than `MAX_MENTIONS`: the caller looks up the first fifty and tells the sender about the rest.
    """
    if "@" not in body:
        return []
    found = (m[1].lower().rstrip("-") for m in _MENTION.finditer(without_code(body)))
    return [h for h in dict.fromkeys(found) if h not in RESERVED and len(h) > 1]
