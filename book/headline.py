"""Write the README's headline tables from the records: ``python book/headline.py``. A test checks that it was done."""

from __future__ import annotations

import re

from kd3a.records import ROOT
from kd3a.study import Results, shipped, table

README = ROOT / "README.md"
BLOCK = re.compile(r"<!-- headline: (\w+) (\w+) -->\n.*?<!-- end of headline -->", re.DOTALL)


def markdown(name: str, scale: str) -> str:
    """A study's table in Markdown, from its records."""
    study = shipped(name, scale)
    frame = table(Results(study).frame(), [entry.title for entry in study.methods], study.domains())
    lines = [["method", *frame.columns], ["---"] * (len(frame.columns) + 1)]
    lines += [[title, *cells] for title, *cells in frame.itertuples()]
    rows = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    return f"Target accuracy in %, mean ± sample standard deviation (number of seeds):\n\n{rows}"


def filled(text: str) -> str:
    """The README's text with its headline tables as the records have them."""
    return BLOCK.sub(
        lambda m: f"<!-- headline: {m[1]} {m[2]} -->\n{markdown(m[1], m[2])}\n<!-- end of headline -->", text
    )


if __name__ == "__main__":
    README.write_text(filled(README.read_text()))
