"""Where the library `limits` counts calls: in this process, without a thread of its own.

Its own storage in memory starts a thread on a call that follows a pause, a quarter of a millisecond in the middle of a send,
and that thread looks at every connection's counter, up to a hundred times a second.
"""

from __future__ import annotations

import threading
import time

from limits.storage.base import Storage

# 60 s: what nobody asks for any more is forgotten this often, in one pass over all.
FORGET_EVERY_S = 60


class Windows(Storage):
    """A counter and the end of its window, by key. A window that has ended counts as none."""

    STORAGE_SCHEME = None

    def __init__(self) -> None:
        super().__init__()
        self._lock = threading.Lock()
        self._windows: dict[str, tuple[int, float]] = {}
        self._forget_at = 0.0

    @property
    def base_exceptions(self) -> type[Exception]:
        return ValueError

    def incr(self, key: str, expiry: int, amount: int = 1) -> int:
        now = time.time()
        with self._lock:
            if now >= self._forget_at:
                self._windows = {k: window for k, window in self._windows.items() if window[1] > now}
                self._forget_at = now + FORGET_EVERY_S
            count, ends_at = self._windows.get(key, (0, 0.0))
            if ends_at <= now:
                count, ends_at = 0, now + expiry
            self._windows[key] = (count + amount, ends_at)
            return count + amount

    def get(self, key: str) -> int:
        count, ends_at = self._windows.get(key, (0, 0.0))
        return count if ends_at > time.time() else 0

    def get_expiry(self, key: str) -> float:
        return max(self._windows.get(key, (0, 0.0))[1], time.time())

    def check(self) -> bool:
        return True

    def reset(self) -> int:
        with self._lock:
            forgotten = len(self._windows)
            self._windows.clear()
            return forgotten

    def clear(self, key: str) -> None:
        with self._lock:
            self._windows.pop(key, None)
