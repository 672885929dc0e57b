"""The whole demo, in order."""

from __future__ import annotations

from collections.abc import Callable

from agents.demo import latencies, promises
from agents.demo.stage import Stage
from agents.demo.tables import Must, Result, summary

FULL_S, QUICK_S = 60.0, 12.0
IDLE_AGENTS = 200


def play(stage: Stage, *, over_s: float, idle_agents: int, say: Callable[[str], None]) -> list[Must]:
    """Plays every experiment, says each table as soon as it is there, and returns what did not hold."""
    experiments: list[Callable[[], Result]] = [
        lambda: promises.claims(stage),
        lambda: promises.mentions(stage),
        lambda: promises.drops(stage),
        lambda: promises.keys(stage),
        lambda: latencies.polling(stage, over_s=over_s),
        lambda: latencies.official_client(stage, over_s=over_s / 3),
        lambda: latencies.idle(stage, agents=idle_agents, over_s=over_s / 3),
    ]
    musts: list[Must] = []
    for experiment in experiments:
        result = experiment()
        say(result.text())
        musts += result.musts
    say(summary(musts))
    return [must for must in musts if not must.holds]
