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
_LINE = re.compile(r"[^\r\n]*(?:\r\n|\n|\r)|[^\r\n]+")
_MARKER = r"(?:[-*+]|\d{1,9}[.)])[ \t]"
_FENCE = re.compile(rf"(?P<before>(?:[ \t>]|{_MARKER})*)(?P<fence>`{{3,}}|~{{3,}})(?P<after>[^\r\n]*)")
_NEW_BLOCK = re.compile(rf"[ \t>]*(?:$|[\r\n]|#{{1,6}}[ \t]|{_MARKER})")
_BACKTICKS = re.compile(r"(?<!\\)(\\*)(`+)")


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
    bad = unsafe_in(name)
    if bad:
        raise errors.Invalid(
            "A display name is one line without control, zero-width or bidirectional characters.",
            code="invalid_display_name",
            refused=[f"U+{ord(c):04X}" for c in dict.fromkeys(bad)],
        )
    return name


def shown_name(name: str) -> str:
    """A name that was given elsewhere, like an account's, as one safe line of at most 64 characters for agents to read."""
    bad = set(unsafe_in(name))
    line = "".join("?" if c in bad else c for c in name)
    return line if len(line) <= MAX_DISPLAY_NAME else f"{line[: MAX_DISPLAY_NAME - 1]}…"


def unsafe_in(line: str) -> list[str]:
    """The characters that end a line, reorder it, or are not seen in it."""
    # Cc control, Cf format (zero-width, bidi, soft hyphen, tags), Cs surrogate, Co private, Cn unassigned, Zl/Zp line breaks.
    return [c for c in line if unicodedata.category(c) in {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"} or c in _BLANK]


# Letters by category, yet drawn as nothing: Hangul fillers, Khmer inherent vowels, Braille blank, variation selectors.
_BLANK = frozenset("\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0\u034f\u180b\u180c\u180d\u180f") | frozenset(
    map(chr, [*range(0xFE00, 0xFE10), *range(0xE0100, 0xE01F0)])
)


def without_code(body: str) -> str:
    """The text with fenced and inline code replaced by spaces, as CommonMark reads it, also in quotes and lists.

    An unclosed fence runs to the end (of its quote); an unclosed backtick is text, and code never reaches into another block.
    """
    blocks: list[list[str]] = [[]]
    fence: re.Match[str] | None = None
    for line in _LINE.findall(body):
        mark = _FENCE.match(line)
        if fence and ">" in fence["before"] and not line.lstrip().startswith(">"):
            fence = None  # The quote is over, and its code with it.
        if fence:
            if mark and _closes(mark, fence):
                fence = None
        elif mark and not (mark["fence"][0] == "`" and "`" in mark["after"]):
            fence = mark
            blocks.append([])
        else:
            if _NEW_BLOCK.match(line):
                blocks.append([])
            blocks[-1].append(line)
    return "\n".join(_without_spans("".join(lines)) for lines in blocks)


def _closes(mark: re.Match[str], fence: re.Match[str]) -> bool:
    """Whether a line ends the code that `fence` began: as many of the same, nothing else, indented by at most three more."""
    if mark["before"].strip("> \t") or mark["after"].strip():
        return False
    indented = len(mark["before"].expandtabs(4)) - len(fence["before"].expandtabs(4))
    return mark["fence"].startswith(fence["fence"]) and indented < 4


def _without_spans(text: str) -> str:
    """Inline code is a run of backticks up to the next run of the same length (CommonMark 6.1); each run is looked at once."""
    runs = list(_BACKTICKS.finditer(text))
    later: dict[int, list[int]] = {}
    for i in range(len(runs) - 1, -1, -1):
        later.setdefault(len(runs[i][2]), []).append(i)
    out: list[str] = []
    at = i = 0
    while i < len(runs):
        # A backslash takes the first backtick out of a run that would open code, but not out of one that closes it.
        opening = len(runs[i][2]) - len(runs[i][1]) % 2
        same = later.get(opening, [])
        while same and same[-1] <= i:
            same.pop()
        if not same:
            i += 1
            continue
        close = same[-1]
        out += [text[at : runs[i].end() - opening], " "]
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
