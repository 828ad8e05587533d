"""How the book gets out: the workflow, the buttons for Colab and Binder, and the notebooks that they open."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import build
import launch
import links
import nbformat
import pdf
import pytest
import yaml
from IPython.core.interactiveshell import InteractiveShell

from kd3a.records import ROOT

ADDRESS = "https://github.com/owner/name"
WORKFLOW = yaml.safe_load((ROOT / ".github" / "workflows" / "book.yml").read_text())
STEPS = [step for job in WORKFLOW["jobs"].values() for step in job["steps"]]


def test_the_workflow_calls_targets_and_scripts_that_exist():
    commands = [line.strip() for step in STEPS for line in step.get("run", "").splitlines()]
    targets = [line.split()[1] for line in commands if line.startswith("make ")]
    assert {"book", "test", "testcourse"} == set(targets)
    known = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(targets) <= known
    scripts = [word for line in commands for word in line.split() if word.endswith(".py")]
    assert scripts and all((ROOT / script).exists() for script in scripts)


def test_the_workflow_publishes_what_was_tested_and_built():
    jobs = WORKFLOW["jobs"]
    assert set(jobs["deploy"]["needs"]) == set(jobs["launch"]["needs"]) == {"test", "build"}
    (upload,) = [step for step in STEPS if "upload-pages-artifact" in step.get("uses", "")]
    assert upload["with"]["path"] == "_build/html"
    assert all(re.fullmatch(r"[\w-]+/[\w-]+@(v\d+|[0-9a-f]{40})", step["uses"]) for step in STEPS if "uses" in step)
    assert WORKFLOW["permissions"] == {"contents": "read"}, "a job that writes says so"


def config() -> dict:
    return yaml.safe_load((ROOT / "book" / "_config.yml").read_text())


def test_the_address_is_one_setting(monkeypatch):
    monkeypatch.setenv("KD3A_REPOSITORY", ADDRESS + ".git")
    assert launch.repository() == ADDRESS
    assert launch.configured(config(), ADDRESS)["repository"] == {
        "url": ADDRESS, "path_to_book": "book", "branch": "launch"}  # fmt: skip
    monkeypatch.setenv("KD3A_REPOSITORY", "ssh://elsewhere/x")
    with pytest.raises(SystemExit, match=r"github\.com/owner/name"):
        launch.repository()
    monkeypatch.delenv("KD3A_REPOSITORY")
    assert launch.repository() == yaml.safe_load((ROOT / "CITATION.cff").read_text()).get("repository-code", "")


def test_without_an_address_no_button_leads_out():
    left = launch.configured(config(), "")
    assert not {"repository", "launch_buttons"} & set(left) and not left["html"]["use_repository_button"]


def test_buttons_lead_to_the_page(tmp_path):
    """A book of one page, built with an address."""
    shutil.copytree(ROOT / "book" / "_static", tmp_path / "_static")
    (tmp_path / "references.bib").touch()
    page = nbformat.v4.new_notebook(cells=[nbformat.v4.new_markdown_cell("# One")])
    page.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
    nbformat.write(page, tmp_path / "one.ipynb")
    (tmp_path / "_toc.yml").write_text("format: jb-book\nroot: one\n")
    (tmp_path / "_config.yml").write_text(yaml.safe_dump(launch.configured(config(), ADDRESS)))
    command = [str(Path(sys.executable).with_name("jupyter-book")), "build", str(tmp_path), "-W", "-n", "-q"]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env=os.environ | {"PYTHONPATH": str(ROOT)}
    )
    assert done.returncode == 0, done.stderr[-2000:]
    html = (tmp_path / "_build" / "html" / "one.html").read_text()
    assert "https://mybinder.org/v2/gh/owner/name/launch?urlpath=lab/tree/book/one.ipynb" in html
    assert "https://colab.research.google.com/github/owner/name/blob/launch/book/one.ipynb" in html
    loaded = re.findall(r'<(?:script|img|link)[^>]+(?:src|href)="(https?:[^"]+)"', html)
    assert not loaded, "buttons are links; nothing is loaded from elsewhere"


def test_launched_notebooks_begin_by_fetching_the_book(tmp_path):
    shutil.copytree(ROOT / "book" / "tutorial", tmp_path / "book" / "tutorial")
    number = launch.prepare(tmp_path, ADDRESS)
    assert number == len(list((ROOT / "book" / "tutorial").glob("*.ipynb"))) > 0
    path = tmp_path / "book" / "tutorial" / "ten-minutes.ipynb"
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    first, *rest = notebook.cells
    assert f"git clone --quiet --depth 1 {ADDRESS} kd3a-book" in first.source and "book/tutorial" in first.source
    assert rest == nbformat.read(ROOT / "book" / "tutorial" / "ten-minutes.ipynb", as_version=4).cells
    launch.prepare(tmp_path, ADDRESS)
    assert len(json.loads(path.read_text())["cells"]) == len(notebook.cells), "once is enough"


@pytest.fixture
def shell():
    yield InteractiveShell.instance()
    InteractiveShell.clear_instance()


def test_the_first_cell_does_nothing_where_the_book_is(shell):
    cell = "".join(launch.setup_cell(ADDRESS, Path("book/tutorial/x.ipynb"))["source"])
    here = Path.cwd()
    assert shell.run_cell(cell).success and Path.cwd() == here


def test_the_first_cell_fetches_the_book_elsewhere(shell, tmp_path, monkeypatch):
    """From a repository on this machine, under a name that is not installed, and without pip."""
    origin = tmp_path / "origin"
    for name in ("book/tutorial/x.ipynb", "notinstalled/__init__.py"):
        (origin / name).parent.mkdir(parents=True)
        (origin / name).touch()
    git = ["git", "-C", str(origin), "-c", "user.name=x", "-c", "user.email=x@example.org"]
    for words in (["init", "--quiet"], ["add", "."], ["commit", "--quiet", "--message", "x"]):
        subprocess.run([*git, *words], check=True)
    cell = "".join(launch.setup_cell(origin.as_uri(), Path("book/tutorial/x.ipynb"))["source"])
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    cell = cell.replace('"kd3a"', '"notinstalled"').replace("%pip install --quiet --editable .", "pass")
    assert shell.run_cell(cell + "\nimport notinstalled").success
    assert Path.cwd() == tmp_path / "kd3a-book" / "book" / "tutorial"


def test_rendering_needs_executed_notebooks(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(build, "WORK", tmp_path)
    assert build.render() == 1
    told = capsys.readouterr().err
    assert told.startswith("Not executed yet: ") and "tutorial/ten-minutes.ipynb" in told and "--no-run" in told


# --- on paper ---------------------------------------------------------------------------------------------------------

HEAD = '<!DOCTYPE html><html lang="en"><head><script src="{}_static/m.js"></script></head><body><nav>x</nav>'


@pytest.fixture
def small_site(tmp_path) -> Path:
    site = tmp_path / "html"
    for folder in ("part", "_images", "_static"):
        (site / folder).mkdir(parents=True)
    (site / "_static" / "m.js").write_text("window.MathJax = {startup: {promise: Promise.resolve()}};")
    (site / "_images" / "a.svg").write_text('<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9"/>')
    one = '<article><h1 id="top">One</h1><a href="part/two.html#top">two</a><a href="part/api.html">api</a></article>'
    two = (
        '<article><h1 id="top">Two</h1><img src="../_images/a.svg" alt="a"><details><summary>s</summary>f</details>'
        '<a href="../index.html">one</a><a href="#top">top</a><a href="https://example.org">out</a></article>'
    )
    (site / "index.html").write_text(HEAD.format("") + one)
    (site / "part" / "two.html").write_text(HEAD.format("../") + two)
    return site


def test_the_printed_book_is_whole(small_site):
    text = pdf.whole(small_site, ["index", "part/two"])
    (small_site.parent / "print.html").write_text(text)
    page = links.Reader(text)
    inside = [link for link in page.links if link != "https://example.org"]
    assert inside == ["#part/two--top", "#index", "#part/two--top"], "a link to what is not printed is plain text"
    assert {link.removeprefix("#") for link in inside} <= page.anchors
    assert page.loads == ["html/_static/m.js", "html/_images/a.svg"] and "<nav>" not in text and "api" in text


def test_the_book_is_printed(small_site, tmp_path):
    source = tmp_path / "print.html"
    source.write_text(pdf.whole(small_site, ["index", "part/two"]))
    pdf.paper(source, tmp_path / "book.pdf")
    printed = (tmp_path / "book.pdf").read_bytes()
    assert printed.startswith(b"%PDF") and printed.count(b"/Type /Page\n") == 2 and b"/Outlines" in printed


def test_what_to_do_without_a_browser(small_site, monkeypatch, capsys):
    monkeypatch.setattr(pdf, "SITE", small_site)
    monkeypatch.setattr(pdf, "names", lambda: ["index"])
    monkeypatch.setenv("KD3A_BROWSER", str(small_site / "none"))
    assert pdf.main() == 1 and "install the system package chromium" in capsys.readouterr().err
    monkeypatch.setattr(pdf, "SITE", small_site / "none")
    assert pdf.main() == 1 and "make book" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("message", "failures", "calls"),
    [
        ("Kernel died before replying to kernel_info", 1, 2),
        ("Kernel died before replying to kernel_info", 9, 3),
        ("Kernel died", 1, 1),
    ],
)
def test_a_kernel_that_did_not_start_is_started_again(message, failures, calls, tmp_path, monkeypatch):
    seen = []

    def execute(*paths, **_):
        seen.append(paths)
        if len(seen) <= failures:
            raise RuntimeError(message)

    (tmp_path / "book").mkdir()
    nbformat.write(nbformat.v4.new_notebook(), tmp_path / "book" / "page.ipynb")
    monkeypatch.setattr(build, "WORK", tmp_path)
    monkeypatch.setattr(build.papermill, "execute_notebook", execute)
    with contextlib.nullcontext() if calls > failures else pytest.raises(RuntimeError, match=message):
        build.execute(Path("page.ipynb"), "cpu", False)
    assert len(seen) == calls
