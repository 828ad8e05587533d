"""Build the book: execute its notebooks with papermill, then render it offline with warnings as errors.

    python book/build.py [--scale quick|cpu] [--train] [--no-html | --no-run]

The last line printed is the path of ``index.html``.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from importlib.metadata import files
from itertools import repeat
from pathlib import Path

import launch
import links
import mend
import nbformat
import papermill
import yaml
from filelock import FileLock

BOOK = Path(__file__).resolve().parent
ROOT = BOOK.parent
WORK = ROOT / "_build" / "work"
FIGURES = WORK / "figures"  # beside the book, as figures/ is in the repository
LONG = ("digits", "tuning", "ten-minutes", "sensitivity")  # pages that begin first, so that none of them ends alone


def pages() -> list[Path]:
    """The pages of the table of contents, in order, as paths relative to the book."""
    toc = yaml.safe_load((BOOK / "_toc.yml").read_text())

    def walk(node) -> list[str]:
        if isinstance(node, list):
            return [name for item in node for name in walk(item)]
        own = [node[key] for key in ("root", "file") if key in node]
        return own + [name for key in ("parts", "chapters", "sections") for name in walk(node.get(key, []))]

    names = [Path(name) for name in walk(toc)]
    return [next(p for s in (".ipynb", ".md") if (BOOK / (p := name.with_suffix(s))).exists()) for name in names]


def execute(page: Path, scale: str, train: bool) -> None:
    """Run one notebook in place of its copy. It gets the parameters that its cell tagged ``parameters`` names."""
    began = time.monotonic()
    notebook = WORK / "book" / page
    known = papermill.inspect_notebook(str(notebook))
    wanted = {name: value for name, value in {"scale": scale, "train": train}.items() if name in known}
    for attempts_left in (2, 1, 0):
        try:
            papermill.execute_notebook(
                str(notebook),
                str(notebook),
                parameters=wanted,
                cwd=str(notebook.parent),
                progress_bar=False,
                log_output=False,
                extra_arguments=["--log-level=ERROR"],  # of the kernel
            )
            break
        except RuntimeError as error:  # two kernels that start at once may take the same port; nothing has run then
            if not attempts_left or "before replying" not in str(error):
                raise
    hide_injected_parameters(notebook)
    print(f"{page}: {time.monotonic() - began:.0f} s", flush=True)


def hide_injected_parameters(path: Path) -> None:
    """Papermill adds a cell with the parameters it was given; a reader of the page needs only the first."""
    notebook = nbformat.read(path, as_version=4)
    for cell in notebook.cells:
        if "injected-parameters" in cell.metadata.get("tags", []):
            cell.metadata["tags"].append("remove-cell")
    nbformat.write(notebook, path)


def copy_mathjax(html: Path) -> None:
    """Put MathJax beside the pages, so that formulas need no network.

    Only now: what lies in ``_static`` when Jupyter Book starts is loaded by every page, and so would be loaded twice.
    """
    script = next(f for f in files("sphinx-mathjax-offline") if f.name == "tex-svg.js")
    shutil.copy(script.locate(), html / "_static" / "tex-svg.js")


def main() -> int:
    parser = argparse.ArgumentParser(description="Build the book.")
    parser.add_argument("--scale", default="cpu", choices=("quick", "cpu"), help="which records the studies show")
    parser.add_argument("--train", action="store_true", help="train missing runs instead of reporting them")
    part = parser.add_mutually_exclusive_group()
    part.add_argument("--no-html", action="store_true", help="only execute the notebooks")
    part.add_argument(
        "--no-run", action="store_true", help="only render, with the notebooks as they were last executed"
    )
    arguments = parser.parse_args()

    WORK.parent.mkdir(exist_ok=True)
    with FileLock(WORK.parent / "book.lock"):  # two builds would tread on each other's pages
        if not arguments.no_run:
            run(arguments.scale, arguments.train)
        return 0 if arguments.no_html else render()


def run(scale: str, train: bool) -> None:
    """Execute every notebook in a copy of the book and publish its figures."""
    threads = os.environ.get("OMP_NUM_THREADS", "1")
    os.environ |= {"KD3A_PROGRESS": "0", "OMP_NUM_THREADS": threads, "KD3A_FIGURES": str(FIGURES)}
    shutil.rmtree(WORK, ignore_errors=True)
    copy_book()
    notebooks = sorted((p for p in pages() if p.suffix == ".ipynb"), key=lambda page: page.stem not in LONG)
    with ProcessPoolExecutor(max_workers=min(2, os.cpu_count() or 1)) as pool:
        list(
            pool.map(execute, notebooks, repeat(scale), repeat(train))
        )  # after a cell that fails, no other page begins
    if scale == "cpu":  # what the book publishes
        shutil.copytree(FIGURES, ROOT / "figures", dirs_exist_ok=True)


def copy_book(*left_out: str) -> None:
    """Copy the book's sources to where they are executed and rendered."""
    ignored = shutil.ignore_patterns("*.py", "*.toml", "__pycache__", ".*", *left_out)
    shutil.copytree(BOOK, WORK / "book", ignore=ignored, dirs_exist_ok=True)


def render() -> int:
    """Render the executed pages, mend them and follow their links; 0 if nothing was wrong."""
    missing = [str(page) for page in pages() if page.suffix == ".ipynb" and not (WORK / "book" / page).exists()]
    if missing:
        print(f"Not executed yet: {', '.join(missing)}; build without --no-run first.", file=sys.stderr)
        return 1
    copy_book("*.ipynb")
    config = launch.configured(yaml.safe_load((BOOK / "_config.yml").read_text()), launch.repository())
    (WORK / "book" / "_config.yml").write_text(yaml.safe_dump(config, allow_unicode=True, sort_keys=False))
    html = ROOT / "_build" / "html"
    program = Path(sys.executable).with_name("jupyter-book")
    command = [str(program), "build", str(WORK / "book"), "--path-output", str(WORK)]
    done = subprocess.run([*command, "--all", "-W", "-n", "--keep-going", "-q"], check=False)
    if done.returncode:
        return done.returncode
    shutil.rmtree(html, ignore_errors=True)
    shutil.copytree(WORK / "_build" / "html", html)
    copy_mathjax(html)
    mend.mend(html)
    if broken := links.check(html):
        print("\n".join(broken), file=sys.stderr)
        return 1
    print(html / "index.html")
    return 0


if __name__ == "__main__":
    sys.exit(main())
