"""The experiments with a clock: from the send being written to the message being read, on the same clock.

The instants of the sends are random, but the same in each run. Each agent has a connection of its own. Sleeping until an
instant, and between the polls of those that poll, is the experiment; nothing else here sleeps.
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from selectors import EVENT_READ, DefaultSelector
from statistics import median
from threading import Event, Semaphore

from agents.demo import official
from agents.demo.stage import Agent, Stage
from agents.demo.tables import Must, Result

SEED = 20_260_728
MESSAGES = 10
# A hub that takes longer than that over the time is broken.
OVERTIME_S = 15.0
# The published figures, in milliseconds: median latency under each way of asking, and with 200 idle agents.
PUBLISHED_LONG_POLL, PUBLISHED_2_S, PUBLISHED_10_S, PUBLISHED_IDLE = 1.0, 535.5, 4593.4, 46.8
# What ours has to reach.
MOST_MS = 2.0


def instants(over_s: float, salt: int = 0) -> list[float]:
    """When the messages are sent: seconds from the beginning, with a moment left before the end for the last to arrive."""
    chance = random.Random(SEED + salt)  # noqa: S311 - an experiment that can be repeated
    return sorted(chance.uniform(0.02, 0.98) * over_s for _ in range(MESSAGES))


def sleep_until(instant: float) -> None:
    time.sleep(max(0.0, instant - time.perf_counter()))


def ms(value: float) -> str:
    return f"{value:,.1f} ms"


# --- Long poll against polling ----------------------------------------------------------------------------------------


@dataclass
class Reader:
    """An agent that asks in one way: by a long poll, or every `every_s` seconds."""

    agent: Agent
    label: str
    published: float
    every_s: float | None = None
    sent: list[float] = field(default_factory=list)
    arrived: list[float] = field(default_factory=list)
    calls: int = 0
    one_more: Semaphore = field(default_factory=lambda: Semaphore(0))
    stopped: Event = field(default_factory=Event)

    def read(self, begin: float, end: float) -> None:
        """Reads until the end, and on if the hub was too slow to have sent everything by then. The last poll is at the end."""
        cursor = 0
        asked_at = begin if self.every_s is None else end - (end - begin) // self.every_s * self.every_s
        while asked_at <= end or (len(self.arrived) < MESSAGES and asked_at < end + OVERTIME_S):
            if self.stopped.wait(max(0.0, asked_at - time.perf_counter())):
                return
            page = self.agent.call("wait_for_messages", after_sequence=cursor, timeout_s=self._timeout_s(end))
            self.calls += 1
            for _ in page["messages"]:
                self.arrived.append(self.agent.client.read_at)
                self.one_more.release()
            cursor = page["after_sequence"]
            if self.every_s is None:
                asked_at = time.perf_counter()
            else:
                asked_at += self.every_s if asked_at < end else 1

    def stop(self) -> None:
        """Ends `read`, which runs in a thread of its own, at once."""
        self.stopped.set()
        self.agent.client.hang_up()

    def _timeout_s(self, end: float) -> float:
        if self.every_s:
            return 0.0
        # A long poll ends with the experiment, so that nothing has to be cut off.
        left = end - time.perf_counter()
        return min(50.0, left) if left > 0 else 1.0

    def latencies_ms(self) -> list[float]:
        return in_ms(self.sent, self.arrived)


def in_ms(sent: Sequence[float], arrived: Sequence[float]) -> list[float]:
    """Each message's latency; messages arrive in the order in which they were sent."""
    if len(sent) != len(arrived):
        raise RuntimeError(f"{len(sent)} messages were sent, and {len(arrived)} arrived.")
    return [(there - then) * 1000 for then, there in zip(sent, arrived, strict=True)]


def polling(stage: Stage, *, over_s: float) -> Result:
    """The published experiment: the same instants under a long poll, polling every 2 s and polling every 10 s, side by side."""
    sender = stage.agent("ann-clock")
    readers = [
        Reader(stage.agent("long-poll"), "long poll", PUBLISHED_LONG_POLL),
        Reader(stage.agent("poll-2s"), "polling every 2 s", PUBLISHED_2_S, 2),
        Reader(stage.agent("poll-10s"), "polling every 10 s", PUBLISHED_10_S, 10),
    ]
    with ThreadPoolExecutor(len(readers)) as threads:
        begin = time.perf_counter()
        reading = [threads.submit(reader.read, begin, begin + over_s) for reader in readers]
        try:
            for number, instant in enumerate(instants(over_s)):
                sleep_until(begin + instant)
                for reader in readers:
                    sender.send(reader.agent, f"message {number}", f"{reader.agent.handle} {number}")
                    reader.sent.append(sender.client.written_at)
                    if reader.every_s is None:
                        # The next send would compete with this message on its way.
                        reader.one_more.acquire(timeout=OVERTIME_S)
            for done in reading:
                done.result()
        except BaseException:
            for reader in readers:
                reader.stop()
            raise
    rows = [
        (r.label, ms(r.published), ms(median(r.latencies_ms())), ms(max(r.latencies_ms())), str(r.calls))
        for r in readers
    ]
    ours = median(readers[0].latencies_ms())
    must = Must("long poll, median", ms(PUBLISHED_LONG_POLL), ms(ours), f"at most {ms(MOST_MS)}", ours <= MOST_MS)
    title = f"Latency: {MESSAGES} messages at random instants within {over_s:g} s"
    columns = ("way of asking", "published median", "our median", "our maximum", "our calls")
    return Result(
        title,
        columns,
        rows,
        [must],
        ("  From the send being written until the message was read, by a raw HTTP client.",),
    )


def official_client(stage: Stage, *, over_s: float) -> Result:
    """The long poll once more, read by the official SDK. The raw client sends, as two SDKs here would share the time."""
    sender, reader = stage.agent("ann-sdk"), stage.agent("bob-sdk")
    ready, stop = Event(), Event()
    sent = []
    with ThreadPoolExecutor(1) as threads:
        reading = threads.submit(official.arrivals, reader, MESSAGES, ready, stop)
        reading.add_done_callback(lambda _: ready.set())  # A failure ends the waiting for it as well.
        try:
            ready.wait()
            begin = time.perf_counter()
            for number, instant in enumerate(instants(over_s, salt=1)):
                sleep_until(begin + instant)
                sender.send(reader, f"message {number}", f"to the sdk {number}")
                sent.append(sender.client.written_at)
            found = in_ms(sent, reading.result(OVERTIME_S))
        finally:
            stop.set()
    title = f"The same with the official Python client (mcp 1.x): {MESSAGES} messages within {over_s:g} s"
    rows = [("long poll", ms(median(found)), ms(max(found)))]
    notes = ("  Apart: most of it is this client checking each answer against the tool's output schema.",)
    return Result(title, ("way of asking", "our median", "our maximum"), rows, [], notes)


# --- Idle agents ------------------------------------------------------------------------------------------------------


def idle(stage: Stage, *, agents: int, over_s: float) -> Result:
    """Many agents wait; now and then one of them is sent a message. How soon it has it, and whether anyone else is answered."""
    chance = random.Random(SEED)  # noqa: S311 - as above
    sender = stage.agent("ann-idle")
    waiting = [stage.agent(f"idle-{number}") for number in range(1, agents + 1)]
    cursors = dict.fromkeys(waiting, 0)
    found: list[float] = []
    others = 0
    with DefaultSelector() as selector:

        def begin_to_wait(agent: Agent) -> None:
            agent.client.begin("wait_for_messages", after_sequence=cursors[agent], timeout_s=50)

        for agent in waiting:
            begin_to_wait(agent)
            selector.register(agent.client, EVENT_READ, agent)
        begin = time.perf_counter()
        for number, instant in enumerate(instants(over_s, salt=2)):
            target = chance.choice(waiting)
            sleep_until(begin + instant)
            sender.begin_to_send(target, f"message {number}", f"to an idle one {number}")
            while len(found) <= number:
                answered = [key.data for key, _ in selector.select(timeout=5)]
                if not answered:
                    sender.client.finish()  # Perhaps it was refused.
                    raise RuntimeError(f"@{target.handle} was not answered within 5 s of a message to it.")
                for agent in answered:
                    page = agent.client.finish()
                    if agent is target:
                        found.append((agent.client.read_at - sender.client.written_at) * 1000)
                    else:
                        others += 1
                    cursors[agent] = page["after_sequence"]
                    begin_to_wait(agent)
            sender.client.finish()
        others += len(selector.select(timeout=0))
    ours = median(found)
    rows = [(f"{agents}", ms(PUBLISHED_IDLE), ms(ours), ms(max(found)), str(others))]
    what = f"{agents} idle agents, median"
    musts = [
        Must(what, ms(PUBLISHED_IDLE), ms(ours), f"at most {ms(MOST_MS)}", ours <= MOST_MS),
        Must("others answered by it", "", str(others), "0", others == 0),
    ]
    title = f"Idle agents: {agents} wait, and {MESSAGES} messages to one of them at a time within {over_s:g} s"
    columns = ("idle agents", "published", "our median", "our maximum", "others answered")
    return Result(title, columns, rows, musts)
