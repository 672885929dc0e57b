"""Runs the official MCP conformance suite against a hub of its own: `python -m tests.conformance.run`. Needs npm.

Two versions of the suite: 0.1.16 knows the revisions with `initialize`, 0.2.0-alpha.12 also the stateless one of 2026-07-28.
Of their scenarios those that a server with nothing but tools can meet are run; what they still ask for and Parley does not
have stands in `expected-failures.yml`. The packages are kept in `var/conformance`.
"""

from __future__ import annotations

import asyncio
import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.conformance.proxy import proxy
from tests.processes import ROOT, free_port, site

OLD, NEW = "0.1.16", "0.2.0-alpha.12"
BASELINE = Path(__file__).with_name("expected-failures.yml")
PACKAGES = ROOT / "var" / "conformance"

# The suite needs Node 22 or newer; npm carries it as a package.
NODE = f"node-linux-{'arm64' if platform.machine() == 'aarch64' else 'x64'}"

WITH_INITIALIZE = ["server-initialize", "ping", "tools-list", "dns-rebinding-protection"]
STATELESS = [
    "tools-list",
    "dns-rebinding-protection",
    "http-header-validation",
    "server-sse-multiple-streams",
    "server-stateless",
    "caching",
]

# One scenario takes a second or two.
SCENARIO_TIMEOUT_S = 90


def install(version: str) -> Path:
    """The folder with this version of the suite and with Node; fetched from npm the first time."""
    folder = PACKAGES / version
    if not (folder / "node_modules" / ".bin" / "conformance").exists():
        folder.mkdir(parents=True, exist_ok=True)
        wanted = [f"{NODE}@22", f"@modelcontextprotocol/conformance@{version}"]
        options = ["--no-audit", "--no-fund", "--loglevel=error"]
        subprocess.run(["npm", "install", "--prefix", str(folder), *options, *wanted], check=True)
    return folder / "node_modules"


def commands(url: str) -> list[list[str]]:
    """Each run of a scenario, as a command line."""
    old, new = str(install(OLD) / ".bin" / "conformance"), str(install(NEW) / ".bin" / "conformance")
    runs = [[old, "server", "--url", url, "--scenario", scenario] for scenario in WITH_INITIALIZE]
    for revision in ("2025-06-18", "2025-11-25"):
        for scenario in WITH_INITIALIZE:
            runs.append([new, "server", "--url", url, "--scenario", scenario, "--spec-version", revision])
    for scenario in STATELESS:
        run = [new, "server", "--url", url, "--scenario", scenario, "--spec-version", "2026-07-28"]
        runs.append([*run, "--expected-failures", str(BASELINE)])
    return runs


async def passes(command: list[str], folder: Path) -> bool:
    """Runs one scenario; prints what it said only if it failed."""
    node = PACKAGES / NEW / "node_modules" / NODE / "bin"
    environment = os.environ | {"PATH": f"{node}:{os.environ['PATH']}"}
    process = await asyncio.create_subprocess_exec(
        *command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    try:
        output, _ = await asyncio.wait_for(process.communicate(), SCENARIO_TIMEOUT_S)
    except TimeoutError:
        process.kill()
        output = b"no end within the time allowed"
    version = OLD if OLD in command[0] else NEW
    revision = command[command.index("--spec-version") + 1] if "--spec-version" in command else ""
    good = process.returncode == 0
    print(f"{'ok    ' if good else 'FAILED'} {version:<15} {revision:<11} {command[command.index('--scenario') + 1]}")
    if not good:
        print(output.decode(errors="replace"), flush=True)
    return good


async def run_all(folder: Path) -> int:
    port, hub_port = free_port(), free_port()
    # To the hub the proxy's address is its public one: Host and Origin are checked as behind any proxy.
    hub = site(folder, public_url=f"http://127.0.0.1:{port}")
    token = hub.token("owner", "--handle", "conformance")
    with hub.served(port=hub_port):
        async with proxy(port=port, hub_port=hub_port, token=token):
            results = [await passes(command, folder) for command in commands(f"http://127.0.0.1:{port}/mcp")]
    print(f"{sum(results)} passed, {len(results) - sum(results)} failed")
    return 0 if results and all(results) else 1


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="parley-conformance-") as folder:
        return asyncio.run(run_all(Path(folder)))


if __name__ == "__main__":
    sys.exit(main())
