"""Questions to people: asked once, answered at most once, by a person who may.

A question is a row, so it outlives every connection. Its answer is stored together with the `decision` message that carries
it to the asker's inbox: either both or neither, so an answer can neither be lost nor be consumed without effect.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from django.utils import timezone
from typing_extensions import TypedDict

from messaging import access, errors, shapes, store
from messaging.access import Caller
from messaging.addressing import Candidate, Routing
from messaging.delivery import Stored, acting, place, ring_after_commit, send_message
from messaging.drafts import Draft, check_text
from messaging.models import Profile, Question, new_id
from messaging.plans import Conversation, Plan
from messaging.store import Statement

MIN_OPTIONS, MAX_OPTIONS = 2, 5
MAX_OPTION = 200
MAX_QUESTION = 4_000


class QuestionShape(TypedDict):
    question_id: str
    question: str
    options: list[str]
    asker: str
    asked: str | None
    created_at: str
    expires_at: str | None
    answered_at: str | None
    answered_by: str | None
    choice: int | None
    decision_id: str | None


def ask_person(
    *,
    by: Caller,
    question: str,
    options: Sequence[str],
    key: str,
    to: str | None = None,
    channel: str | None = None,
    expires_in_s: int | None = None,
    now: datetime | None = None,
) -> shapes.QuestionReceipt:
    """Puts a question with 2 to 5 options to one person, or to the people of a channel. Raises what `send_message` raises, and
    `not_a_person`."""
    if (to is None) == (channel is None):
        raise errors.Invalid("Give either `to` (a person's handle) or `channel`.")
    check_text("question", question, 1, MAX_QUESTION)
    if not MIN_OPTIONS <= len(options) <= MAX_OPTIONS or len(set(options)) != len(options):
        raise errors.Invalid(f"`options` takes {MIN_OPTIONS} to {MAX_OPTIONS} different answers.")
    for option in options:
        check_text("options", option, 1, MAX_OPTION)
    draft = Draft(
        body=question, to_handle=to, channel=channel, expires_in_s=expires_in_s, kind="question", options=tuple(options)
    )
    receipt: Any = send_message(by=by, draft=draft, key=key, now=now)
    return receipt  # type: ignore[no-any-return]


def find_question(*, by: Caller, question_id: UUID) -> QuestionShape:
    """A question that the caller may read. Raises `unknown_question`."""
    return _shape(_find(by, question_id))


def answer_question(*, by: Caller, question_id: UUID, choice: int, now: datetime | None = None) -> QuestionShape:
    """A person chooses one option (counted from 0). The same person's same choice again is fine.

    Raises `unknown_question`, `not_a_person`, `not_asked`, `already_answered`, `question_expired`, `Invalid`.
    """
    question = _find(by, question_id)
    stored = store.run(store.atomic(_answer(by, question, choice, now or timezone.now())))
    ring_after_commit(stored.streams)
    return _shape(_find(by, question_id))


def _find(by: Caller, question_id: UUID) -> Question:
    readable = access.readable_messages(by).filter(pk=question_id).values("pk")
    found = (
        Question.objects.filter(message__in=readable)
        .select_related("message__sender", "message__channel", "asked", "answered_by")
        .first()
    )
    if found is None:
        raise errors.NotFound("There is no question of this id that you may see.", code="unknown_question")
    return found


def _answer(by: Caller, question: Question, choice: int, now: datetime) -> store.Steps[Stored]:
    if by.kind != Profile.Kind.PERSON:
        raise errors.Denied("Only a person can answer a question.", code="not_a_person")
    if question.asked_id and question.asked_id != by.profile_id:
        raise errors.Denied("This question was put to somebody else.", code="not_asked")
    if not 0 <= choice < len(question.options):
        raise errors.Invalid(f"`choice` is 0 to {len(question.options) - 1}.")
    if (yield from acting(by)):
        raise errors.paused()
    message = question.message
    if message.expires_at and message.expires_at <= now:
        raise errors.Conflict("This question has expired; the asker no longer waits.", code="question_expired")
    # Whoever comes second waits here, and then finds the answer.
    answered = (yield _lock(question.pk))[0]
    if answered[0] is not None:
        if (answered[0], answered[1]) == (by.profile_id, choice):
            return Stored({})
        raise errors.Conflict("This question has been answered already.", code="already_answered", choice=answered[1])
    decision = new_id()
    asker = message.sender
    direct = message.channel.kind == "direct"
    recipient = Candidate(
        asker.pk, asker.inbox_id, asker.handle, asker.kind, paused=False, blocks_sender=False, may_read=True
    )
    routing = Routing([(recipient, "direct" if direct else "to")])
    pair = (message.channel.low_id, message.channel.high_id) if direct else None
    conversation = Conversation(message.channel_id, message.channel.stream_id, pair)  # type: ignore[arg-type]
    draft = Draft(body=question.options[choice], kind="decision", refers_to=message.pk)
    stored = yield from place(by, draft, Plan(conversation, message.thread_root_id, routing), decision, now)
    yield Statement(
        "UPDATE question SET answered_at = %s, answered_by_id = %s, choice = %s, decision_id = %s WHERE message_id = %s",
        [now, by.profile_id, choice, decision, question.pk],
    )
    return stored


def _lock(question_id: UUID) -> Statement:
    """(answered by, choice)"""
    sql = "SELECT answered_by_id, choice FROM question WHERE message_id = %s"
    return Statement(sql + (" FOR UPDATE" if store.on_postgres() else ""), [question_id])


def _shape(question: Question) -> QuestionShape:
    message = question.message
    return {
        "question_id": str(question.pk),
        "question": message.body,
        "options": question.options,
        "asker": message.sender.handle,
        "asked": question.asked.handle if question.asked else None,
        "created_at": shapes.iso_time(message.created_at),
        "expires_at": shapes.iso(message.expires_at),
        "answered_at": shapes.iso(question.answered_at),
        "answered_by": question.answered_by.handle if question.answered_by else None,
        "choice": question.choice,
        "decision_id": str(question.decision_id) if question.decision_id else None,
    }
