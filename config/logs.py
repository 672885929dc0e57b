"""What the log says: everything but a token, wherever a client has put it (into an address, say) and whoever logs that."""

from __future__ import annotations

import logging
import re

# The beginning, by which an owner recognises a token, may be shown (`agents.connections.credentials`). Nothing of Django can be
# imported here: logging is set up before it.
TOKEN = re.compile(r"(prl_[\w-]{8})[\w-]+")


class WithoutTokens(logging.Formatter):
    """A formatter that cuts each token to its beginning, in tracebacks too."""

    def format(self, record: logging.LogRecord) -> str:
        return TOKEN.sub(r"\1…", super().format(record))
