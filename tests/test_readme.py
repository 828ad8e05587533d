"""The README is true: its commands run, its tables are what the records say, its map names what is there."""

from __future__ import annotations

import importlib.util
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from kd3a.records import ROOT

README = (ROOT / "README.md").read_text()
COMMANDS = [
    line.split("#")[0].strip()
    for block in re.findall(r"```sh\n(.*?)```", README, re.DOTALL)
    for line in block.splitlines()
]


def run(words: list[str]) -> subprocess.CompletedProcess:
    return subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)


def test_there_are_commands():
    assert [c for c in COMMANDS if c.startswith("make ")] == ["make book", "make test"]
    assert sum(c.startswith(".venv/bin/") for c in COMMANDS) >= 4


@pytest.mark.parametrize("command", [c for c in COMMANDS if c.startswith("make ")])
def test_make_knows_its_targets(command):
    """The targets themselves are this test run and the book's tests; here, that make would do something for them."""
    assert "python" in run([*shlex.split(command), "--dry-run"]).stdout


@pytest.mark.parametrize("command", [c for c in COMMANDS if c.startswith(".venv/bin/")])
def test_commands_run(command, tmp_path, monkeypatch):
    monkeypatch.setenv("KD3A_FIGURES", str(tmp_path))  # the quick figures must not take the place of the published ones
    program, *words = shlex.split(command)
    words = [str(tmp_path / word) if word == "out.ipynb" else word for word in words]
    done = run([str(Path(sys.executable).with_name(Path(program).name)), *words])
    assert done.returncode == 0, done.stderr


def test_make_help_lists_every_target():
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    listed = set(re.findall(r"make (\w+)", run(["make", "help"]).stdout))
    assert targets == listed


def test_tables_come_from_the_records():
    spec = importlib.util.spec_from_file_location("headline", ROOT / "book" / "headline.py")
    headline = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(headline)
    for page in headline.PAGES:
        text = page.read_text()
        assert "<!-- headline" in text and headline.filled(text) == text, "run python book/headline.py"


def test_pictures_and_rooms_exist():
    for picture in re.findall(r"!\[.+?\]\((.+?)\)", README):
        assert (ROOT / picture).exists()
    for room in re.findall(r"^\| `(\w+/)` \|", README, re.MULTILINE):
        assert (ROOT / room).is_dir()


def test_environment_and_lock_agree_with_the_package():
    names = re.compile(r"^[\w.-]+", re.MULTILINE)
    lock = set(names.findall((ROOT / "requirements.lock").read_text().lower().replace("_", "-")))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    for line in [*project["dependencies"], *extras["book"], *extras["images"], *extras["dev"]]:
        assert names.match(line)[0].lower() in lock, f"{line} is not in requirements.lock"
    assert "-r requirements.lock" in (ROOT / "environment.yml").read_text()
