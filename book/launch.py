"""Where the pages can be run elsewhere: the one place that knows the repository's address.

The address is ``KD3A_REPOSITORY`` (the publishing workflow sets it) or ``repository-code`` of ``CITATION.cff``. Without
one, the book has no button that leads out of it.

    python book/launch.py CHECKOUT

puts a first cell into every notebook of a checkout, which fetches the book where a notebook comes alone, as on Colab.
The workflow does that on the branch that the buttons open; Binder, which has the whole checkout, skips the cell.
"""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import yaml

BOOK = Path(__file__).resolve().parent
FOLDER = "kd3a-book"  # of the fetched book


def repository() -> str:
    """Address of the repository, or nothing."""
    known = yaml.safe_load((BOOK.parent / "CITATION.cff").read_text()).get("repository-code", "")
    address = os.environ.get("KD3A_REPOSITORY", known).rstrip("/").removesuffix(".git")
    if address and not re.fullmatch(r"https://github\.com/[\w.-]+/[\w.-]+", address):
        sys.exit(f"The repository's address is {address!r}; Colab and Binder need https://github.com/owner/name.")
    return address


def configured(config: dict[str, Any], address: str) -> dict[str, Any]:
    """The book's configuration with buttons that lead to the repository, or, without an address, with none."""
    if not address:
        return {key: value for key, value in config.items() if key not in ("launch_buttons", "repository")}
    html = config["html"] | {"use_repository_button": True, "use_issues_button": True}
    return config | {"html": html, "repository": config["repository"] | {"url": address}}


def setup_cell(address: str, page: Path) -> dict[str, Any]:
    """The first cell of a launched notebook; ``page`` is its path in the repository."""
    lines = [
        "# Fetch the book's module, settings and records where they are missing.",
        "import importlib.util",
        "import sys",
        "from pathlib import Path",
        "",
        'if importlib.util.find_spec("kd3a") is None:',
        f"    !git clone --quiet --depth 1 {address} {FOLDER}",
        f"    %cd -q {FOLDER}",
        "    %pip install --quiet --editable .",
        "    sys.path.insert(0, str(Path.cwd()))",
        f"    %cd -q {page.parent.as_posix()}",
    ]
    source = [line + "\n" for line in lines[:-1]] + lines[-1:]
    return {"cell_type": "code", "id": "fetch-the-book", "metadata": {}, "source": source,
            "execution_count": None, "outputs": []}  # fmt: skip


def prepare(checkout: Path, address: str) -> int:
    """Put the first cell into every notebook of the checkout's book; the number of notebooks."""
    paths = sorted((checkout / "book").rglob("*.ipynb"))
    for path in paths:
        notebook = json.loads(path.read_text())
        cells = [cell for cell in notebook["cells"] if cell.get("id") != "fetch-the-book"]
        notebook["cells"] = [setup_cell(address, path.relative_to(checkout)), *cells]
        path.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n")
    return len(paths)


if __name__ == "__main__":
    if len(sys.argv) != 2 or not repository():
        sys.exit(
            "Set KD3A_REPOSITORY=https://github.com/owner/name and name a checkout: python book/launch.py CHECKOUT"
        )
    print(f"{prepare(Path(sys.argv[1]), repository())} notebooks fetch their book now.")
