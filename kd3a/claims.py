"""The paper's claims, as the studies judge them: one place for the pages that test them and for the ledger of all.

A study's claims are a function of its rows, because the scales of a study need not hold the same ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import pandas as pd

from kd3a import report
from kd3a.probes import NAMES
from kd3a.reconstructions import control, rivals
from kd3a.report import Claim, Finding

T = TypeVar("T")
FOCUS, OTHER_RULES = "consensus-focus", ("h-divergence", "info-gain")
SHARES = ("MA-15", "MA-30", "MA-50")  # of wrong labels


Claims = Callable[[Sequence[str]], list[Claim]]


def benchmark(margin: float = 0.0) -> Claims:
    """KD3A against the two references without adaptation; ``margin`` is what it must have above the first."""
    return lambda rows: [
        Claim("KD3A beats Source-only", "KD3A", ("Source-only",), margin=margin),
        Claim("KD3A beats FedAvg", "KD3A", ("FedAvg",)),
    ]


def ablation(rows: Sequence[str]) -> list[Claim]:
    """Parts added one by one, and parts exchanged."""
    vote, focus, full = "+ Knowledge Vote", "+ Consensus Focus", "+ BatchNorm MMD"
    return [
        Claim("Knowledge Vote improves on FedAvg", vote, ("FedAvg",), margin=0.01),
        Claim("Consensus Focus improves on that", focus, (vote,)),
        Claim("BatchNorm MMD improves on that", full, (focus,)),
        Claim("The vote beats both ensembles", full, ("mean ensemble", "max ensemble")),
        Claim("The closed form does as well as the loss", full, ("BatchNorm MMD as a loss",), margin=-0.01),
    ]


def augmentation(rows: Sequence[str]) -> list[Claim]:
    """With mixup and without."""
    paper, none = "Beta(0.2, 0.2)", "no mixup"
    return [
        Claim("KD3A with mixup beats KD3A without", paper, (none,)),
        Claim("KD3A without mixup beats FedAvg without", none, ("FedAvg, no mixup",)),
        Claim("Beta(0.2, 0.2) does as well as Beta(2, 2)", paper, ("Beta(2, 2)",), margin=-0.01),
    ]


def gate(rows: Sequence[str]) -> list[Claim]:
    """A gate against none, and the paper's rising gate against fixed ones."""
    rising, none = "gate 0.9 to 0.95", "gate 0"
    fixed = tuple(row for row in rows if " to " not in row)
    right = "A gate of 0.9 makes the vote more often right than none"
    return [
        Claim(right, "gate 0.9", (none,), margin=0.01, value="vote_accuracy"),
        Claim("The rising gate beats no gate", rising, (none,)),
        Claim("The rising gate does as well as the best fixed one", rising, fixed, margin=-0.01),
    ]


def negative_transfer(rows: Sequence[str]) -> list[Claim]:
    """Consensus Focus against other rules and against leaving the bad domain out; the weight it gives."""

    def others(situation: str) -> tuple[str, ...]:
        return tuple(f"{situation} · {rule}" for rule in OTHER_RULES)

    best, drop = "Consensus Focus beats the other rules", ("domain-drop",)
    return [
        *(Claim(f"{share}: {best}", f"{share} · {FOCUS}", others(share)) for share in SHARES),
        Claim("MA-15: Consensus Focus beats leaving the source out", f"MA-15 · {FOCUS}", drop),
        Claim("IR: Consensus Focus does as well as leaving it out", f"IR · {FOCUS}", drop, margin=-0.01),
        *(
            Claim(
                f"MA-30: {rule} gives the source more weight than Consensus Focus",
                row,
                (f"MA-30 · {FOCUS}",),
                value="bad_weight",
            )
            for rule, row in zip(OTHER_RULES, others("MA-30"), strict=True)
        ),
    ]


def rounds(rows: Sequence[str]) -> list[Claim]:
    """KD3A with few rounds against FADA with many, and against itself with many."""
    own, fada = family(rows, "KD3A"), tuple(family(rows, "FADA"))
    once = "KD3A, r = 1"
    return [
        Claim("KD3A at r = 1 beats FADA at every r", once, fada),
        Claim(f"{own[0].replace(',', ' at')} beats FADA at every r", own[0], fada),
        Claim(
            f"KD3A at r = 1 does as well as{own[-1].partition(',')[2].replace(' r', ' at r')}", once, (own[-1],), -0.02
        ),
    ]


def family(rows: Sequence[str], name: str) -> list[str]:
    """The rows of one method over its numbers of rounds.

    >>> family(["KD3A, r = 0.2", "FADA, r = 1", "KD3A as written, r = 1"], "KD3A")
    ['KD3A, r = 0.2']
    """
    return [row for row in rows if row.startswith(f"{name}, r = ")]


def sensitivity(rows: Sequence[str]) -> list[Claim]:
    """What KD3A's accuracy depends on: batch size, rounds, and the number of sources."""
    kept = "does as well as the base"
    return [
        *(Claim(f"{row} {kept}", row, ("KD3A",), margin=-0.02) for row in rows if row.startswith("KD3A, batch")),
        *(Claim(f"{row} {kept}", row, ("KD3A",), margin=-0.02) for row in rows if row.startswith("KD3A, r = ")),
        Claim("KD3A with all sources beats KD3A with one", "KD3A", ("KD3A, K = 1",)),
    ]


def paper_against_code(rows: Sequence[str]) -> list[Claim]:
    """Whether the paper's text and the released code come to the same accuracy."""
    return [
        Claim("paper does as well as official", "paper", ("official",), margin=-0.02),
        Claim("official does as well as paper", "official", ("paper",), margin=-0.02),
    ]


def privacy(rows: Sequence[str]) -> list[Claim]:
    """What gradients give away, of one image and of a batch, and what a round's update does.

    Every attack is held against its control, and against the mean image where it is to succeed. A gradient of one image
    must give away at least half of the images, that of a batch at least a tenth; a round's update at most a twentieth.
    """
    cells = {tuple(row.split(" · ")): row for row in rows}
    whole = max((seen for _, _, seen in cells), key=lambda seen: math.prod(map(int, seen.split(" × "))))
    batches = {seen for _, _, seen in cells if seen.startswith("1 × ")} - {"1 × 1"}
    gave, kept = [], []
    for (network, attack, seen), row in cells.items():
        name = NAMES[attack]
        if seen == "1 × 1" and attack != "idlg":
            text = f"{network}, gradient of one image: {name} beats control and mean image"
            gave.append(Claim(text, row, rivals(row), 0.5, "recovered"))
        elif seen in batches:
            text = f"{network}, gradient of a batch: {name} beats control and mean image"
            gave.append(Claim(text, row, rivals(row), 0.1, "recovered"))
        elif seen == whole:
            text = f"{network}, update of a round: the control does as well as {name}"
            kept.append(Claim(text, control(row), (row,), -0.05, "recovered"))
    return [*gave, *kept]


#: What each study judges; names as in params/.
CLAIMS: dict[str, Claims] = {
    "digit5": benchmark(0.03),
    "amazon": benchmark(),
    "office-caltech10": benchmark(),
    "pacs": benchmark(),
    "pacs-features": benchmark(),
    "domainnet": benchmark(),
    "ablation": ablation,
    "augmentation": augmentation,
    "gate": gate,
    "negative-transfer": negative_transfer,
    "rounds": rounds,
    "paper-against-code": paper_against_code,
    "privacy": privacy,
    "sensitivity": sensitivity,
}


def of(study: str, rows: Sequence[str]) -> list[Claim]:
    """The claims that a study with these rows judges."""
    return CLAIMS[study](rows)


# --- the ledger -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Entry:
    """One claim of the paper: what it says in our words, where, and which statements of which study judge it."""

    text: str
    place: str
    study: str = ""  # none: records cannot judge it
    page: str = ""  # under book/
    numbers: tuple[int, ...] = ()  # of the study's claims, from zero; all by default

    def chosen(self, all_of_them: Sequence[T]) -> tuple[T, ...]:
        """What belongs to this entry, of something that the study has for each of its claims."""
        return tuple(all_of_them[i] for i in self.numbers) if self.numbers else tuple(all_of_them)


LEDGER = (
    Entry("On Digit-5, KD3A beats training on the pooled sources.", "appendix F", "digit5", "benchmarks/digit5"),
    Entry("On Amazon Review, it does so too.", "appendix F", "amazon", "benchmarks/amazon"),
    Entry("On Office-Caltech10, it does so too.", "appendix F", "office-caltech10", "benchmarks/office-caltech10"),
    Entry("On DomainNet, it beats all other methods by a large margin.", "section 5.1", page="benchmarks/domainnet"),
    Entry(
        "On Clipart and Sketch of DomainNet, it does as well as training on the target's labels.",
        "section 5.1",
        page="benchmarks/domainnet",
    ),
    Entry(
        "Every one of its three parts raises the accuracy.", "section 5.1", "ablation", "studies/ablation", (0, 1, 2)
    ),
    Entry("The vote is better than a mean or a maximum.", "section 3.2", "ablation", "studies/ablation", (3,)),
    Entry("The closed form does as well as the loss.", "appendix E", "ablation", "studies/ablation", (4,)),
    Entry("Mixup helps.", "appendix F", "augmentation", "studies/augmentation", (0,)),
    Entry("KD3A does well without it.", "appendix F", "augmentation", "studies/augmentation", (1,)),
    Entry("A high gate makes a consensus worth learning from.", "section 3.2", "gate", "studies/gate"),
    Entry(
        "With wrong labels, Consensus Focus beats other rules.",
        "section 5.2",
        "negative-transfer",
        "studies/negative-transfer",
        (0, 1, 2),
    ),
    Entry(
        "With few wrong labels, it beats leaving the source out.",
        "section 5.2",
        "negative-transfer",
        "studies/negative-transfer",
        (3,),
    ),
    Entry(
        "It loses little to an irrelevant source.",
        "section 5.2",
        "negative-transfer",
        "studies/negative-transfer",
        (4,),
    ),
    Entry(
        "It gives a malicious source less weight than other rules do.",
        "section 5.2",
        "negative-transfer",
        "studies/negative-transfer",
        (5, 6),
    ),
    Entry("KD3A beats FADA with fewer rounds.", "section 5.3", "rounds", "studies/rounds", (0, 1)),
    Entry(
        "What is sent after every batch, as FADA does, gives images away.",
        "section 5.3",
        "privacy",
        "studies/privacy",
        tuple(range(6)),
    ),
    Entry("What KD3A sends after a round does not.", "section 5.3", "privacy", "studies/privacy", tuple(range(6, 12))),
    Entry("One round an epoch is enough.", "section 5.3", "rounds", "studies/rounds", (2,)),
)


@dataclass(frozen=True)
class Judged:
    """An entry and what the records say of it."""

    entry: Entry
    findings: tuple[Finding, ...]

    @property
    def verdict(self) -> str:
        if self.entry.study:
            return report.verdict(self.findings)
        return "not testable here"

    @property
    def clear(self) -> bool:
        """Whether no statement behind the verdict could be turned by chance."""
        return all(finding.clear for finding in self.findings)


def judged(scale: str, results: str = "") -> list[Judged]:
    """Every entry of the ledger, held against the records of a scale."""
    known: dict[str, list[Finding]] = {}
    for study in dict.fromkeys(entry.study for entry in LEDGER if entry.study):
        found = report.open_results(study, scale, results)
        rows = [entry.title for entry in found.study.methods]
        known[study] = report.judge(report.outcomes(found), of(study, rows), found.study.domains())
    return [Judged(entry, entry.chosen(known[entry.study]) if entry.study else ()) for entry in LEDGER]


def ledger_table(entries: Sequence[Judged]) -> str:
    """The ledger as a Markdown table; every verdict links to the page with the evidence, from a page beside it."""
    lines = ["| the paper says | where | verdict | measured, in points | evidence |", "|---|---|---|---|---|"]
    for one in entries:
        leads = [f"{100 * f.lead:+.1f}".replace("-", "−") if f.seeds else "–" for f in one.findings]
        link = f"[{one.entry.page.rpartition('/')[2]}](../{one.entry.page}.ipynb)" if one.entry.page else "–"
        verdict = f"**{one.verdict}**" + ("" if one.clear or one.verdict == "open" else ", not clear")
        cells = (one.entry.text, one.entry.place, verdict, "; ".join(leads) or "–", link)
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def tally(entries: Sequence[Judged]) -> pd.Series:
    """How many entries have each verdict."""
    order = ("reproduced", "partly reproduced", "not reproduced", "open", "not testable here")
    return pd.Series([one.verdict for one in entries]).value_counts().reindex(order, fill_value=0)
