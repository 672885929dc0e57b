"""How one process serves the hub, and how it stops.

Both servers would cut open long polls on SIGTERM: daphne cancels them at once, uvicorn waits for them without a bound. So
the hub owns the signals. On the first one it stops accepting, drains the doorbell (each open wait ends with a complete,
empty answer), lets the answers leave, and only then stops the server. On a second one it stops as it stands.

`on_uvicorn` and `on_daphne` do that in each server's own terms; `manage.py serve` chooses.
"""

from __future__ import annotations

import gc
import resource

# 5 s: a drained wait answers within milliseconds; what takes longer hangs, and a supervisor kills after 10 s.
DRAIN_S = 5

# 4,096: all agents of a hub come back at the same moment after a restart. The system's own limit may be lower.
BACKLOG = 4096

# Longer than the 60 s for which nginx keeps an idle connection: the side that uses it closes it, so no request is lost.
KEEP_ALIVE_S = 75


class CannotListenError(Exception):
    """The address is taken, or not of this machine."""


def raise_file_limit() -> None:
    """Each open wait is a file descriptor, and 1,024, the usual soft limit, is soon reached."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def settle_memory() -> None:
    """Called when all is imported: the collector then leaves that alone, and looks less often.

    With 10,000 waits a full collection stopped the process for up to 360 ms; so it is at most 15 ms.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)
