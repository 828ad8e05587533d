"""The paper's claims, as the studies judge them: one place for the pages that test them and for the ledger of all.

A study's claims are a function of its rows, because the scales of a study need not hold the same ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import pandas as pd

from kd3a import report
from kd3a.errors import UserError, choose
from kd3a.judging import EVERY, SAVING, Claim, Finding, findings_table, judge, verdict
from kd3a.probes import NAMES
from kd3a.reconstructions import control, rivals
from kd3a.records import ROOT
from kd3a.settings import SCALES

FOCUS, OTHER_RULES = "consensus-focus", ("h-divergence", "info-gain")
SHARES = ("MA-15", "MA-30", "MA-50")  # of wrong labels


Claims = Callable[[Sequence[str]], list[Claim]]


#: The rivals in the paper's tables: those whose sources keep their images, and those that have them in one place.
DECENTRALISED, CENTRALISED = ("SHOT", "FADA"), ("MDAN", "M³SDA-β", "CMSS", "DSBN")
#: What the label-free search made of FADA on photographs: a rival beside FADA where a study has it.
SEARCHED = "FADA (attention alone)"


def benchmark(
    margin: float = 0.0,
    decentralised: tuple[str, ...] = DECENTRALISED,
    centralised: tuple[str, ...] = CENTRALISED,
    hard: str = "",
) -> Claims:
    """KD3A against the two references without adaptation, and against the rivals of the paper's table.

    Args:
        margin: what it must have above the first reference.
        decentralised, centralised: the rivals that the paper has on these data; judged where a study has rivals.
        hard: a target on which the paper sees it ahead of all of them.
    """

    def claims(rows: Sequence[str]) -> list[Claim]:
        asked = [
            Claim("KD3A beats Source-only", "KD3A", ("Source-only",), margin=margin),
            Claim("KD3A beats FedAvg", "KD3A", ("FedAvg",)),
        ]
        if "MDAN" in rows:
            apart = (*decentralised, *(row for row in rows if row == SEARCHED))
            asked.append(Claim("KD3A beats the paper's decentralised rivals", "KD3A", apart))
            asked.append(Claim("KD3A beats the paper's centralised rivals", "KD3A", centralised))
            if hard:
                everybody = apart + centralised
                asked.append(Claim(f"On {hard}, KD3A beats all of them", "KD3A", everybody, 0.03, target=hard))
        return asked

    return claims


def ablation(rows: Sequence[str]) -> list[Claim]:
    """Parts added one by one, and parts exchanged.

    The base gives teachers the target's statistics, which alone lift FedAvg: the vote is held against both FedAvgs.
    A network without BatchNorm has neither row, and two parts.
    """
    vote, focus, full = "+ Knowledge Vote", "+ Consensus Focus", "+ BatchNorm MMD"
    batchnorm = full in rows
    averages = ("FedAvg", "FedAvg (target statistics)") if batchnorm else ("FedAvg",)
    steps = {"Knowledge Vote": (vote, averages), "Consensus Focus": (focus, (vote,))}
    if batchnorm:
        steps["BatchNorm MMD"] = (full, (focus,))
    first, *later = steps
    whole = list(steps.values())[-1][0]
    asked = [
        Claim(f"{first} improves on FedAvg, also with target statistics", *steps[first], margin=0.01),
        *(Claim(f"{part} improves on that", *steps[part]) for part in later),
        *(Claim(f"{part} does so on every target", *step, target=EVERY) for part, step in steps.items()),
        Claim("All parts together improve on FedAvg on every target", whole, averages, target=EVERY),
        Claim("Knowledge Vote has more than half of the whole gain", vote, (whole, averages[-1]), halfway=True),
        Claim("The vote beats both ensembles", whole, ("mean ensemble", "max ensemble")),
    ]
    if batchnorm:
        asked.append(
            Claim("The closed form does as well as the loss", full, ("BatchNorm MMD as a loss",), margin=-0.01)
        )
    return asked


def augmentation(rows: Sequence[str]) -> list[Claim]:
    """With mixup and without; with none, as written and with the target's statistics on both sides.

    Without BatchNorm the two are one.
    """
    paper, none, written, average = "Beta(0.2, 0.2)", "no mixup", "as written, no mixup", "FedAvg, no mixup"
    claims = [
        Claim("KD3A with mixup beats KD3A without", paper, (none,)),
        Claim("It does so on every target", paper, (none,), target=EVERY),
        Claim("KD3A as written, without mixup, beats FedAvg without", written if written in rows else none, (average,)),
        Claim("Beta(0.2, 0.2) does as well as Beta(2, 2)", paper, ("Beta(2, 2)",), margin=-0.01),
    ]
    control = "FedAvg (target statistics), no mixup"
    if control in rows:
        claims.insert(3, Claim("With target statistics in both, it does so too", none, (control,)))
    return claims


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

    best, drop, least = "Consensus Focus beats the other rules", ("domain-drop",), f"MA-30 · {FOCUS}"
    weight = {"mean_bad_weight": "during training", "bad_weight": "at the end"}
    return [
        *(Claim(f"{share}: {best}", f"{share} · {FOCUS}", others(share)) for share in SHARES),
        *(
            Claim(f"{share}: Consensus Focus beats leaving the source out", f"{share} · {FOCUS}", drop)
            for share in ("MA-15", "MA-30")
        ),
        Claim("MA-50: leaving the source out beats Consensus Focus", *drop, (f"MA-50 · {FOCUS}",)),
        Claim("IR: Consensus Focus does as well as leaving it out", f"IR · {FOCUS}", drop, margin=-0.01),
        *(
            Claim(f"MA-30: {rule} gives the source more weight {when} than Consensus Focus", row, (least,), value=value)
            for value, when in weight.items()
            for rule, row in zip(OTHER_RULES, others("MA-30"), strict=True)
        ),
    ]


def rounds(rows: Sequence[str]) -> list[Claim]:
    """KD3A with few rounds against FADA with many, and against itself with many."""
    own, fada = family(rows, "KD3A"), tuple(family(rows, "FADA"))
    few, once, many = own[0], "KD3A, r = 1", own[-1]

    def at(row: str) -> str:
        return row.partition(", ")[2]

    def seldom(row: str) -> bool:
        """Whether models meet less than once an epoch."""
        return float(row.rpartition(" ")[2]) < 1

    asked = [
        Claim("KD3A at r = 1 beats FADA at every r", once, fada),
        Claim(f"KD3A at {at(few)} beats FADA at every r", few, fada),
        Claim(f"KD3A at r = 1 does as well as at {at(many)}", once, (many,), margin=-0.02),
        Claim(f"KD3A at {at(few)} loses little against r = 1", few, (once,), margin=-0.02),
        Claim(f"FADA at {at(fada[-1])} beats FADA at {at(fada[0])}", fada[-1], (fada[0],)),
    ]
    if "FADA, r = 100" in rows:
        text = "FADA at r = 100 sends a hundred times the bytes of KD3A at r = 1"
        asked.append(Claim(text, once, ("FADA, r = 100",), 2.0, SAVING))
    if {"FADA, r = 10", "FADA, r = 100"} <= {*rows}:
        text = "FADA needs them: at r = 10 it is at least 2 points worse"
        asked.append(Claim(text, "FADA, r = 100", ("FADA, r = 10",), 0.02))
    if "Source-only" in rows:
        asked += [Claim(f"KD3A at {at(row)} beats Source-only", row, ("Source-only",)) for row in own if seldom(row)]
        asked += [Claim(f"Source-only beats FADA at {at(row)}", "Source-only", (row,)) for row in fada if seldom(row)]
    return asked


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
    return [Claim("paper and official lie within two points of each other", "paper", ("official",), 0.02, alike=True)]


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
    "digit5": benchmark(0.03, hard="mm"),
    "amazon": benchmark(decentralised=("FADA",), centralised=("MDAN",)),
    "office-caltech10": benchmark(),
    "office-caltech10-features": benchmark(),
    **dict.fromkeys(  # DomainNet, whose table has DAEL, and what stands in its place
        ("domainnet", "domainnet126", "pacs", "pacs-features"), benchmark(centralised=(*CENTRALISED, "DAEL"))
    ),
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
    asks: tuple[str, ...] = ()  # words of the study's statements; all of them by default

    def chosen(self, claims: Sequence[Claim]) -> list[Claim]:
        """Those of the study's claims that belong to this entry."""
        return [claim for claim in claims if not self.asks or any(words in claim.text for words in self.asks)]


def _benchmark(data: str, study: str) -> tuple[Entry, ...]:
    """What the paper says of one of its smaller benchmarks."""
    where = "appendix F", study, f"benchmarks/{study}"
    return (
        Entry(f"On {data}, KD3A beats training on the pooled sources.", *where, ("beats Source-only",)),
        Entry(f"On {data}, it beats the decentralised methods.", *where, (" decentralised",)),
        Entry(f"On {data}, it beats the centralised ones.", *where, (" centralised",)),
    )


def _study(name: str) -> tuple[str, str]:
    """A study and its page."""
    return name, f"studies/{name}"


LEDGER = (
    *_benchmark("Digit-5", "digit5"),
    Entry(
        "On MNIST-M of Digit-5, it does so by a large margin.", "appendix F", "digit5", "benchmarks/digit5", ("On mm",)
    ),
    *_benchmark("Amazon Review", "amazon"),
    *_benchmark("Office-Caltech10", "office-caltech10"),
    Entry("On DomainNet, it beats all other methods by a large margin.", "section 5.1", page="benchmarks/domainnet"),
    Entry(
        "On Clipart and Sketch of DomainNet, it does as well as training on the target's labels.",
        "section 5.1",
        page="benchmarks/domainnet",
    ),
    Entry(
        "On Quickdraw of DomainNet, where all methods fail, it is slightly above Source-only.",
        "section 5.1",
        page="benchmarks/domainnet",
    ),
    Entry("Knowledge Vote raises the accuracy.", "section 5.1", *_study("ablation"), ("Knowledge Vote improves",)),
    Entry("Consensus Focus raises it further.", "section 5.1", *_study("ablation"), ("Consensus Focus improves",)),
    Entry("BatchNorm MMD raises it further.", "section 5.1", *_study("ablation"), ("BatchNorm MMD improves",)),
    Entry("Each of them does so on every target.", "section 5.1", *_study("ablation"), ("does so on every target",)),
    Entry("Most of the gain is Knowledge Vote's.", "section 5.1", *_study("ablation"), ("half of the whole gain",)),
    Entry("The vote is better than a mean or a maximum.", "section 3.2", *_study("ablation"), ("ensembles",)),
    Entry("The closed form does as well as the loss.", "appendix E", *_study("ablation"), ("closed form",)),
    Entry("Mixup helps.", "appendix F", *_study("augmentation"), ("with mixup beats", "on every target")),
    Entry("KD3A does well without it.", "appendix F", *_study("augmentation"), ("as written", "target statistics")),
    Entry("A high gate makes a consensus worth learning from.", "section 3.5", *_study("gate")),
    Entry(
        "With wrong labels, Consensus Focus beats other rules.",
        "section 5.2",
        *_study("negative-transfer"),
        ("the other rules",),
    ),
    Entry(
        "With few, it beats leaving the source out.",
        "section 5.2",
        *_study("negative-transfer"),
        ("Focus beats leaving",),
    ),
    Entry("With half of them wrong, it does not.", "section 5.2", *_study("negative-transfer"), ("MA-50: leaving",)),
    Entry("It loses little to an irrelevant source.", "section 5.2", *_study("negative-transfer"), ("IR: ",)),
    Entry(
        "It gives a malicious source less weight than other rules do.",
        "section 5.2",
        *_study("negative-transfer"),
        ("more weight",),
    ),
    Entry("KD3A beats FADA with fewer rounds.", "section 5.3", *_study("rounds"), ("beats FADA at every r",)),
    Entry("One round an epoch is enough.", "section 5.3", *_study("rounds"), ("KD3A at r = 1 does as well",)),
    Entry("With fewer it loses little.", "section 5.3", *_study("rounds"), ("loses little",)),
    Entry("FADA needs many rounds.", "section 5.3", *_study("rounds"), ("FADA at r = 100 beats",)),
    Entry(
        "KD3A sends a hundredth of what FADA needs.", "section 5.3", *_study("rounds"), ("hundred times", "FADA needs")
    ),
    Entry(
        "With a round every two or five epochs, FADA is worse than Source-only; KD3A is not.",
        "section 5.3",
        *_study("rounds"),
        ("Source-only",),
    ),
    Entry(
        "What is sent after every batch, as by FADA, gives images away.",
        "section 5.3",
        *_study("privacy"),
        ("gradient of",),
    ),
    Entry("What KD3A sends after a round does not.", "section 5.3", *_study("privacy"), ("update of a round",)),
)


#: Other data that a study may have run on: the end of that study's name, and what a reader calls the data.
ELSEWHERE = {"digit5": "Digit-5", "amazon": "Amazon Review", "features": "frozen features"}


def elsewhere(study: str, scale: str) -> dict[str, str]:
    """The studies with the rows of ``study`` on other data, by what the data are called.

    >>> elsewhere("rounds", "cpu")
    {'Digit-5': 'rounds-digit5'}
    """
    names = {title: f"{study}-{end}" for end, title in ELSEWHERE.items()}
    return {title: name for title, name in names.items() if (ROOT / "params" / name / f"{scale}.yaml").is_file()}


@dataclass(frozen=True)
class Judged:
    """An entry and what the records say of it, by the data that they are of."""

    entry: Entry
    findings: Mapping[str, Sequence[Finding]]

    @property
    def verdict(self) -> str:
        """Over all data: a claim that holds on some of them only is partly reproduced."""
        if not self.entry.study:
            return "not testable here"
        return verdict([finding for found in self.findings.values() for finding in found])

    @property
    def measured(self) -> str:
        """The leads, in words; the data are named where there are several, or others than the study's own."""
        several, told = len(self.findings) > 1 or bool({*self.findings} & {*ELSEWHERE.values()}), []
        for data, found in self.findings.items():
            leads = ", ".join(f.claim.told(f.lead) if f.seeds else "–" for f in found)
            told.append(f"{data} {leads}" if several else leads)
        return "; ".join(told) or "–"


def judged(scale: str, results: str = "") -> list[Judged]:
    """Every entry of the ledger, held against the records of a scale, on all data that its study has records of.

    Statements that other data cannot judge, or not yet, do not count there; on the study's own they are open.
    """
    choose("scale", scale, SCALES)
    known: dict[str, dict[str, tuple[pd.DataFrame, list[Claim], list[str]]]] = {}
    for study in dict.fromkeys(entry.study for entry in LEDGER if entry.study):
        for title, name in {"": study, **elsewhere(study, scale)}.items():
            try:
                found = report.open_results(name, scale, results)
            except UserError:  # not every study has every scale
                continue
            rows = [entry.title for entry in found.study.methods]
            told = report.outcomes(found), of(study, rows), found.study.domains()
            known.setdefault(study, {})[title or found.study.dataset] = told

    def findings(entry: Entry) -> dict[str, list[Finding]]:
        out = {}
        for data, (frame, claims, targets) in known.get(entry.study, {}).items():
            found = judge(frame, entry.chosen(claims), targets)
            out[data] = [finding for finding in found if finding.seeds or data not in ELSEWHERE.values()]
        return {data: found for data, found in out.items() if found}

    return [Judged(entry, findings(entry)) for entry in LEDGER]


def ledger_table(entries: Sequence[Judged]) -> str:
    """The ledger as a Markdown table; every claim links to the page with the evidence, from a page beside it."""
    lines = []
    for one in entries:
        word, *unclear = one.verdict.partition(", ")
        said = f"[{one.entry.text}](../{one.entry.page}.ipynb)"
        lines.append((said, one.entry.place, f"**{word}**" + "".join(unclear), one.measured))
    return report.markdown(("the paper says", "where", "verdict", "measured"), lines)


def statements(entries: Sequence[Judged]) -> pd.DataFrame:
    """Every statement behind the ledger's lines, with its data: how it came out, and what was measured."""
    tables = [
        findings_table(found).rename(lambda statement, data=data: f"{statement} · {data}")
        for one in entries
        for data, found in one.findings.items()
    ]
    found = pd.concat(tables).drop(columns="needed").rename_axis(index=None)
    return found[~found.index.duplicated()]


def tally(entries: Sequence[Judged]) -> pd.DataFrame:
    """How many entries have each verdict, and for how many of them more seeds could turn it."""
    order = ("reproduced", "partly reproduced", "not reproduced", "open", "not testable here")
    words = [one.verdict.partition(", ") for one in entries]
    found = pd.DataFrame({"verdict": [w[0] for w in words], "clear": [not w[2] for w in words]})
    count = found["verdict"].value_counts().reindex(order, fill_value=0)
    clear = found[found["clear"]]["verdict"].value_counts().reindex(order[:3], fill_value=0)
    cells = {"claims": count, "of them clear": [str(clear.get(word, "–")) for word in order]}
    return pd.DataFrame(cells, index=list(order))
