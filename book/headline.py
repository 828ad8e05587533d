"""Write what README and the book's first page say of results: ``python book/headline.py``. A test checks that."""

from __future__ import annotations

import re

from kd3a import claims, report
from kd3a.records import ROOT
from kd3a.study import Results, percent, shipped, table

PAGES = (ROOT / "README.md", ROOT / "book" / "index.md")
BLOCK = re.compile(r"<!-- headline: (.*?) -->\n.*?<!-- end of headline -->", re.DOTALL)


def markdown(name: str, scale: str) -> str:
    """A study's table in Markdown, from its records."""
    study = shipped(name, scale)
    frame = table(Results(study).frame(), [entry.title for entry in study.methods], study.domains())
    rows = report.markdown(("method", *frame.columns), list(frame.itertuples()))
    return f"Target accuracy in %, mean ± sample standard deviation (number of seeds):\n\n{rows}"


def answer() -> str:
    """Whether it works, in a few sentences: accuracies on the digits, and the verdicts of the ledger."""
    found = report.ranking(report.open_results("digits", "cpu"))
    at = {r.row: f"{percent(r.mean, r.std, r.n).partition(' (')[0]} %" for r in found.itertuples()}
    rival = found[(found["family"] == "decentralised") & ~found["row"].str.match("KD3A|FedAvg$|FedAvg \\(")].iloc[0]
    verdicts = claims.tally(claims.judged("cpu"))
    count, clear = verdicts["claims"], sum(int(n) for n in verdicts["of them clear"] if n != "–")
    own = "target statistics"
    waiting = f"{count['open']} still to be judged, and " if count["open"] else ""
    seeds = {1: "one seed", 2: "two seeds", 3: "three seeds"}.get(n := int(found["n"].min()), f"{n} seeds")
    return "\n".join(
        [
            f"**In parts.** In the mean over targets, ± over {seeds}, on these digits:\n",
            f"- As the paper writes it, KD3A has {at['KD3A']}. Averaging the sources' models, FedAvg, has "
            f"{at['FedAvg']}, one model on the pooled sources {at['Source-only']}.",
            "- With one switch, by which its teachers read the target through the target's own BatchNorm statistics, "
            f"KD3A has {at[f'KD3A ({own})']}, and with all that its released code does {at['KD3A (official)']}. "
            "The switch was singled out after these accuracies had been seen. FedAvg with the target's statistics has "
            f"{at[f'FedAvg ({own})']}.",
            f"- The best rival that moves nothing but models, {rival['row']}, has {at[rival['row']]}.",
            "",
            f"Of the {count.sum()} claims of the paper in [the ledger](studies/claims), {count['reproduced']} are "
            f"reproduced on our data, {count['partly reproduced']} partly, {count['not reproduced']} not; "
            f"{waiting}{count['not testable here']} need data and machines that we do not have. "
            f"{clear or 'None'} of these verdicts {'is' if clear == 1 else 'are'} clear: more seeds could turn the "
            "others.",
        ]
    )


def written(block: re.Match) -> str:
    """A block as the records have it: ``answer``, or the table of a study and scale."""
    text = answer() if block[1] == "answer" else markdown(*block[1].split())
    return f"<!-- headline: {block[1]} -->\n{text}\n<!-- end of headline -->"


def filled(text: str) -> str:
    """A page's text with its blocks as the records have them."""
    return BLOCK.sub(written, text)


if __name__ == "__main__":
    for page in PAGES:
        page.write_text(filled(page.read_text()))
