"""Who may be woken, and who pays. Fresh installs wake nobody.

A wake-up is a paid run of a hosted agent. Only a handle in `to` can be woken; people and external agents never are: they
read when they come.
"""

from __future__ import annotations

from messaging import shapes


def decide_wake() -> shapes.Wake:
    """Whether storing a message for this recipient wakes it. No profile is hosted, so the answer is no, with the reason."""
    return {"state": "none", "reason": "not_hosted"}
