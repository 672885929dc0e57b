"""The programs around the hub: the first start, the mutant runner, and the plugin that forbids skips."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import dj_database_url
import pytest
from dotenv import dotenv_values

from config.first_start import write_env
from tests.mutants import BadMutantError, Mutant, patched

ROOT = Path(__file__).resolve().parent.parent


def first_start(path: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": os.environ["PATH"], "PARLEY_ENV_FILE": str(path)}
    command = [sys.executable, "-m", "config.first_start", *arguments]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.mutant("config/first_start.py", "os.O_EXCL, 0o600)", "os.O_EXCL, 0o644)")
def test_the_first_start_writes_settings_that_only_their_owner_can_read(tmp_path):
    first_start(tmp_path / "env")
    written = (tmp_path / "env").read_text()
    assert stat.S_IMODE((tmp_path / "env").stat().st_mode) == 0o600
    assert "PUBLIC_URL=http://127.0.0.1:8000\n" in written
    assert len(written.split("SECRET_KEY=")[1].splitlines()[0]) >= 50


@pytest.mark.mutant("config/first_start.py", "os.O_CREAT | os.O_EXCL", "os.O_CREAT | os.O_TRUNC")
def test_a_second_start_keeps_the_settings(tmp_path):
    first_start(tmp_path / "env")
    before = (tmp_path / "env").read_bytes()
    assert first_start(tmp_path / "env").returncode == 0
    assert (tmp_path / "env").read_bytes() == before


def test_a_folder_of_any_name_can_hold_the_database(tmp_path):
    folder = tmp_path / "a b#c$d%e'ü"
    write_env(tmp_path / "env", data=folder, port=8000)
    url = dotenv_values(tmp_path / "env")["DATABASE_URL"] or ""
    assert dj_database_url.parse(url)["NAME"] == str(folder / "parley.sqlite3")


def test_a_second_start_on_another_port_says_where_to_change_it(tmp_path):
    first_start(tmp_path / "env", "--port", "8001")
    again = first_start(tmp_path / "env", "--port", "8002")
    assert again.returncode == 1
    assert "edit PUBLIC_URL" in again.stderr


@pytest.mark.parametrize("text", ["nothing of it", "the line\nthe line\n"])
def test_a_mutant_that_does_not_fit_the_code_exactly_once_is_refused(text):
    with pytest.raises(BadMutantError):
        patched(text, Mutant("test", "file", "the line", "another"))


def test_a_mutant_that_breaks_the_syntax_is_refused():
    with pytest.raises(BadMutantError):
        patched("a = 1\n", Mutant("test", "file.py", "a = 1", "a = ("))


def test_a_mutant_of_more_than_one_line_is_refused():
    with pytest.raises(BadMutantError):
        patched("a\nb\n", Mutant("test", "file", "a\nb", "c"))


@pytest.mark.parametrize(("ci", "code"), [("true", 1), ("", 0)])
def test_a_skip_turns_the_run_red_in_ci_and_only_there(tmp_path, ci, code):
    (tmp_path / "test_it.py").write_text("import pytest\n\ndef test_it():\n    pytest.skip('no reason')\n")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.no_skips", "-p", "no:cacheprovider", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, env=os.environ | {"CI": ci}, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stdout
    assert ("test_it.py::test_it" in done.stdout) == (ci == "true")
