"""What callers may ask, as strict models: the one place where the contract of each call stands.

MCP's input schemas, the OpenAPI description and the reference in `docs/` are made from these. Types are checked here: no
coercion ("5" is no number, true is no 1), nothing unknown, null means absent. Limits are checked by the domain functions,
which name them with stable codes; here they are written into descriptions, because clients strip them from schemas.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, TypeVar
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator
from pydantic_core import PydanticCustomError

from messaging import channels, delivery, drafts, errors, handles, history, profiles, questions, receipts

MAX_NUMBER = 2**63  # Both databases count in 64 bits, one of them for the sign.


class Input(BaseModel):
    """Arguments of one call."""

    model_config: ClassVar[ConfigDict] = ConfigDict(strict=True, extra="forbid", frozen=True)

    @field_validator("*")
    @classmethod
    def can_be_stored(cls, value: Any) -> Any:
        """What no column holds, and no search finds, is refused here for all fields and databases alike."""
        for part in value if isinstance(value, list) else [value]:
            if isinstance(part, str) and "\0" in part:
                raise PydanticCustomError("nul", "contains a NUL character, which cannot be stored; remove it")
            if isinstance(part, str) and any("\ud800" <= c <= "\udfff" for c in part):
                raise PydanticCustomError("surrogate", "contains half of a surrogate pair, which is no character")
            if isinstance(part, int) and abs(part) >= MAX_NUMBER:
                raise PydanticCustomError("too_big", "is a number of more than 63 bits")
        return value


I = TypeVar("I", bound=Input)  # noqa: E741 - the usual letter for a type of input

# Ids come as text; in them, and only in them, text is turned into something else.
Id = Annotated[UUID, Field(strict=False)]

Handle = Annotated[str, Field(description="A handle, with or without @.")]
Body = Annotated[
    str,
    Field(
        description=f"The text, 1 to {drafts.MAX_BODY:,} characters of Markdown. An @handle in it shows the message to that "
        "peer, where it may read the channel, but wakes nobody.",
        json_schema_extra={"minLength": 1, "maxLength": drafts.MAX_BODY},
    ),
]
Key = Annotated[
    str,
    Field(
        description=f"A name of your own for this one message, {drafts.MIN_KEY} to {drafts.MAX_KEY} characters, like a UUID. "
        "Repeat it unchanged when you retry, and nothing is sent twice; use a new one for a new message.",
        json_schema_extra={"minLength": drafts.MIN_KEY, "maxLength": drafts.MAX_KEY},
    ),
]
ThreadRoot = Annotated[
    Id | None, Field(description="To answer in a thread: the thread_root_id of a message that you were given.")
]
Expiry = Annotated[
    int | None,
    Field(
        description=f"Seconds after which the message is no longer handed out, 1 to {drafts.MAX_EXPIRY_S:,}.",
        json_schema_extra={"minimum": 1, "maximum": drafts.MAX_EXPIRY_S},
    ),
]
MessageId = Annotated[Id, Field(description="The message_id of a message or receipt.")]
ChannelName = Annotated[str, Field(description="A channel's name, with or without #.")]
HistoryLimit = Annotated[
    int,
    Field(
        description=f"At most so many messages, 1 to {history.MAX_LIMIT}. A page also ends at 36,000 bytes.",
        json_schema_extra={"minimum": 1, "maximum": history.MAX_LIMIT},
    ),
]
AfterPlace = Annotated[
    int | None,
    Field(description="Messages after this channel_sequence, oldest first.", json_schema_extra={"minimum": 0}),
]
BeforePlace = Annotated[
    int | None, Field(description="The messages just before this channel_sequence.", json_schema_extra={"minimum": 0})
]


class ClaimProfile(Input):
    handle: Annotated[
        str,
        Field(
            description="2 to 31 characters: a-z, 0-9 and -, the first not a dash; no upper case.",
            json_schema_extra={"pattern": handles.HANDLE_RULE},
        ),
    ]
    display_name: Annotated[
        str | None,
        Field(
            description=f"A name for people to read: one line of at most {handles.MAX_DISPLAY_NAME} characters.",
            json_schema_extra={"maxLength": handles.MAX_DISPLAY_NAME},
        ),
    ] = None


class Nothing(Input):
    """No arguments."""


class ListPeers(Input):
    query: Annotated[str, Field(description="Part of a handle or display name.")] = ""
    limit: Annotated[
        int,
        Field(
            description=f"At most so many, 1 to {profiles.MAX_PEERS}.",
            json_schema_extra={"minimum": 1, "maximum": profiles.MAX_PEERS},
        ),
    ] = 20
    after: Annotated[str, Field(description="The last handle of the page before, to read on.")] = ""


class SendAgentMessage(Input):
    to: Annotated[str, Field(description="One handle, with or without @.")]
    body: Body
    idempotency_key: Key
    thread_root_id: ThreadRoot = None
    expires_in_s: Expiry = None


class SendChannelMessage(Input):
    channel: ChannelName
    body: Body
    idempotency_key: Key
    to: Annotated[
        list[str],
        Field(
            description=f"Handles whom you address, at most {drafts.MAX_TO}: it is put into their inboxes.",
            json_schema_extra={"maxItems": drafts.MAX_TO},
        ),
    ] = []
    thread_root_id: ThreadRoot = None
    expires_in_s: Expiry = None


class PreviewSend(Input):
    body: Body
    channel: Annotated[str | None, Field(description="The channel to post in; leave it out for a direct message.")] = (
        None
    )
    to: Annotated[
        str | list[str], Field(description="For a direct message one handle; in a channel the handles you address.")
    ] = []
    thread_root_id: ThreadRoot = None
    expires_in_s: Expiry = None


class AskPerson(Input):
    question: Annotated[
        str,
        Field(
            description=f"The question, 1 to {questions.MAX_QUESTION:,} characters.",
            json_schema_extra={"minLength": 1, "maxLength": questions.MAX_QUESTION},
        ),
    ]
    options: Annotated[
        list[str],
        Field(
            description=f"{questions.MIN_OPTIONS} to {questions.MAX_OPTIONS} different answers to choose from, each at most "
            f"{questions.MAX_OPTION} characters.",
            json_schema_extra={"minItems": questions.MIN_OPTIONS, "maxItems": questions.MAX_OPTIONS},
        ),
    ]
    idempotency_key: Key
    to: Annotated[str | None, Field(description="A person's handle. Give this or `channel`.")] = None
    channel: Annotated[str | None, Field(description="A channel any of whose people may answer.")] = None
    expires_in_s: Expiry = None


class WaitForMessages(Input):
    after_sequence: Annotated[
        int | None,
        Field(
            description="The after_sequence of the last page that you have processed: it acknowledges that page, and what was "
            "lost on the way comes again. Without it the hub goes on after what it last handed out.",
            json_schema_extra={"minimum": 0},
        ),
    ] = None
    timeout_s: Annotated[
        float,
        Field(
            description=f"How long to wait if nothing is there, 0 to {delivery.MAX_WAIT_S} seconds.",
            allow_inf_nan=False,
            json_schema_extra={"minimum": 0, "maximum": delivery.MAX_WAIT_S},
        ),
    ] = delivery.MAX_WAIT_S
    limit: Annotated[
        int,
        Field(
            description=f"At most so many messages, 1 to {delivery.MAX_PAGE}. A page also ends at 36,000 bytes.",
            json_schema_extra={"minimum": 1, "maximum": delivery.MAX_PAGE},
        ),
    ] = 20


class Acknowledge(Input):
    message_ids: Annotated[
        list[Id] | None,
        Field(
            description=f"Messages you are done with, 1 to {receipts.MAX_IDS}. Give this or `through_sequence`.",
            json_schema_extra={"minItems": 1, "maxItems": receipts.MAX_IDS},
        ),
    ] = None
    through_sequence: Annotated[
        int | None,
        Field(
            description="You are done with all you were offered up to this sequence.", json_schema_extra={"minimum": 0}
        ),
    ] = None


class InboxPeek(Input):
    limit: Annotated[
        int,
        Field(
            description=f"At most so many, 1 to {delivery.MAX_PAGE}.",
            json_schema_extra={"minimum": 1, "maximum": delivery.MAX_PAGE},
        ),
    ] = 20
    after_sequence: Annotated[
        int, Field(description="Those after this sequence, to read on.", json_schema_extra={"minimum": 0})
    ] = 0


class MessageStatus(Input):
    message_id: MessageId


class ReadMessage(Input):
    message_id: MessageId
    offset: Annotated[
        int, Field(description="From this character on: body_cut.shown of the page.", json_schema_extra={"minimum": 0})
    ] = 0


class EditMessage(Input):
    message_id: MessageId
    body: Body


class RetractMessage(Input):
    message_id: MessageId


class ListChannels(Input):
    query: Annotated[str, Field(description="Part of a name or topic.")] = ""
    limit: Annotated[
        int,
        Field(
            description=f"At most so many, 1 to {channels.MAX_CHANNELS}.",
            json_schema_extra={"minimum": 1, "maximum": channels.MAX_CHANNELS},
        ),
    ] = 50
    after: Annotated[str, Field(description="The last name of the page before, to read on.")] = ""


class ReadChannel(Input):
    channel: Annotated[
        str, Field(description="A channel's name, or @handle for your direct conversation with that peer.")
    ]
    after_channel_sequence: AfterPlace = None
    before_channel_sequence: BeforePlace = None
    limit: HistoryLimit = 20


class ReadThread(Input):
    thread_root_id: Annotated[Id, Field(description="The thread_root_id of any of its messages.")]
    after_channel_sequence: AfterPlace = None
    before_channel_sequence: BeforePlace = None
    limit: HistoryLimit = 20


class SearchMessages(Input):
    query: Annotated[
        str,
        Field(
            description=f"Words that the message must all contain, at most {history.MAX_QUERY} characters. No operators.",
            json_schema_extra={"minLength": 1, "maxLength": history.MAX_QUERY},
        ),
    ]
    channel: Annotated[str | None, Field(description="Only in this channel, or @handle for a direct conversation.")] = (
        None
    )
    limit: HistoryLimit = 20
    offset: Annotated[
        int,
        Field(
            description=f"The offset of the page before, to read on; at most {history.MAX_OFFSET:,}.",
            json_schema_extra={"minimum": 0, "maximum": history.MAX_OFFSET},
        ),
    ] = 0


class CreateChannel(Input):
    name: Annotated[
        str,
        Field(
            description="2 to 31 characters: a-z, 0-9 and -, the first not a dash.",
            json_schema_extra={"pattern": handles.HANDLE_RULE},
        ),
    ]
    private: Annotated[bool, Field(description="Only members see it and may read.")] = False
    topic: Annotated[
        str,
        Field(
            description=f"What it is about: one line of at most {channels.MAX_TOPIC} characters.",
            json_schema_extra={"maxLength": channels.MAX_TOPIC},
        ),
    ] = ""


class NamedChannel(Input):
    name: ChannelName


class SetChannelPolicy(Input):
    name: ChannelName
    answers_agents: Annotated[
        bool,
        Field(description="Whether agents that name you in `to` may wake you in this channel, at your owner's cost."),
    ]


class AddMember(Input):
    name: ChannelName
    handle: Handle


class AnswerQuestion(Input):
    question_id: Id
    choice: Annotated[int, Field(description="The option chosen, counted from 0.", json_schema_extra={"minimum": 0})]


class FindQuestion(Input):
    question_id: Id


def parse(model: type[I], arguments: dict[str, Any]) -> I:
    """The arguments as their model. Raises `invalid_argument`, which names each field and what is wrong with it."""
    try:
        return model.model_validate({k: v for k, v in arguments.items() if v is not None})
    except ValidationError as failure:
        wrong = [
            {"field": ".".join(str(part) for part in e["loc"][:1]) or "arguments", "problem": e["msg"]}
            for e in failure.errors()
        ]
        wrong = list({(w["field"], w["problem"]): w for w in wrong}.values())[:20]
        told = "; ".join(f"{w['field'][:64]}: {w['problem']}" for w in wrong)
        raise errors.Invalid(f"The arguments do not fit. {told}.", fields=wrong) from None


def schema(model: type[Input]) -> dict[str, Any]:
    """The JSON Schema of a model as clients read it best: an optional field has its plain type, no titles, no nulls."""
    whole: dict[str, Any] = _plain(model.model_json_schema())
    whole.pop("description", None)
    whole.setdefault("properties", {})
    return whole


def _plain(node: Any) -> Any:
    if isinstance(node, list):
        return [_plain(n) for n in node]
    if not isinstance(node, dict):
        return node
    out = {k: _plain(v) for k, v in node.items() if not (k == "title" and isinstance(v, str))}
    if out.get("default", 0) is None:
        del out["default"]
    options = [o for o in out.get("anyOf", []) if o != {"type": "null"}]
    if len(options) == 1 and "anyOf" in out:
        del out["anyOf"]
        out = {**options[0], **out}
    return out
