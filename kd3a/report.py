"""What a study page says beside its table: what is missing, where it ran, and what crossed."""

from __future__ import annotations

import math
import os
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from kd3a.attacks import Attack
from kd3a.data import find
from kd3a.judging import Claim, Finding, interval, judge
from kd3a.methods import METHODS
from kd3a.poison import Poison
from kd3a.reconstructions import Reconstructions, results_of
from kd3a.records import Record
from kd3a.study import MethodEntry, Results, Study, duration, percent, shipped, study_given, summary

pd.set_option("display.max_colwidth", None, "display.max_rows", None)  # a page shows every cell and row


def open_results(study: str, scale: str, folder: str = "", names: Mapping[str, Any] | None = None) -> Results:
    """The records of a study, in ``folder``, else in ``KD3A_RESULTS``, else in the repository's results/.

    The study is the shipped one, or where ``names`` hold a whole params file, :func:`kd3a.study.study_given`.
    """
    chosen = folder or os.environ.get("KD3A_RESULTS")
    return results_of(study_given(names or {}, study) or shipped(study, scale), Path(chosen) if chosen else None)


def finished(results: Results) -> list[tuple[str, Record]]:
    """Row title and record of every run of the grid that is recorded."""
    return [(title, record) for title, _, record in results.recorded() if record is not None]


def missing(results: Results) -> pd.DataFrame:
    """How many runs of each row and target are not recorded; empty when all are."""
    gaps = [{"row": title, "target": run.target} for title, run, record in results.recorded() if record is None]
    rows = list(dict.fromkeys(title for title, _ in results.grid))
    if not gaps:
        return pd.DataFrame(columns=results.study.domains())
    counts = pd.DataFrame(gaps).value_counts().unstack(fill_value=0)
    return counts.reindex(index=[r for r in rows if r in counts.index], columns=results.study.domains(), fill_value=0)


def history(runs: Sequence[tuple[str, Record]]) -> pd.DataFrame:
    """One line per epoch of every run: row, target, seed, epoch, accuracy."""
    lines = [
        {"row": title, "target": r["target"], "seed": r["seed"], "epoch": e["epoch"], "accuracy": e["target_accuracy"]}
        for title, r in runs
        for e in r["epochs"]
    ]
    return pd.DataFrame(lines, columns=["row", "target", "seed", "epoch", "accuracy"])


def bad_domain(study: Study) -> str | None:
    """The source that rows of a study poison or let attack; nothing if there is none, or not the same in all."""
    settings = [study.training_of(entry) for entry in study.methods]
    poisons = {poison.domain for t in settings if (poison := Poison.parse(t.poison))}
    names = poisons | {attack.source for t in settings if (attack := Attack.parse(t.attack))}
    return names.pop() if len(names) == 1 else None


def weights(runs: Sequence[tuple[str, Record]], domain: str) -> pd.DataFrame:
    """One line per epoch of every run that weighs ``domain``: row, target, seed, epoch, weight."""
    lines = [
        {"row": title, "target": r["target"], "seed": r["seed"], "epoch": e["epoch"], "weight": e["weights"][domain]}
        for title, r in runs
        for e in r["epochs"]
        if domain in e["weights"]
    ]
    return pd.DataFrame(lines, columns=["row", "target", "seed", "epoch", "weight"])


def polls(runs: Sequence[tuple[str, Record]]) -> pd.DataFrame:
    """One line per epoch with a vote: row, target, seed, epoch, the share accepted, and how much of it was right."""
    lines = [
        {"row": title, "target": r["target"], "seed": r["seed"], "epoch": e["epoch"], **e["vote"]}
        for title, r in runs
        for e in r["epochs"]
        if e.get("vote")
    ]
    return pd.DataFrame(lines, columns=["row", "target", "seed", "epoch", "accepted", "accuracy"])


def outcomes(results: Results) -> pd.DataFrame:
    """The study's frame with what else a record tells: its peak memory in megabytes, of the last epoch the share of
    samples that the vote accepted and how many of those it named correctly, and the weight of the bad domain, in the
    last epoch and as a mean over all, and how few bytes it sent, in powers of ten; empty where a run has no such thing.

    Of a study of attacks, a line per image of the rows that are whole."""
    if isinstance(results, Reconstructions):
        return results.whole()
    bad, lines = bad_domain(results.study), []
    for _, record in finished(results):
        last = record["epochs"][-1]
        vote = last.get("vote") or {}
        extra = {"accepted": vote.get("accepted"), "vote_accuracy": vote.get("accuracy")}
        extra |= {"bad_weight": last["weights"].get(bad), "memory": record["peak_mb"]}
        if weighed := [epoch["weights"][bad] for epoch in record["epochs"] if bad in epoch["weights"]]:
            extra["mean_bad_weight"] = statistics.mean(weighed)
        lines.append({"key": record["key"], **extra})
    names = ["key", "accepted", "vote_accuracy", "bad_weight", "mean_bad_weight", "memory"]
    more = pd.DataFrame(lines, columns=names).drop_duplicates("key")  # two rows may be one run
    numbers = {name: float for name in more.columns[1:]}
    frame = results.frame().merge(more.astype(numbers), on="key", how="left", validate="many_to_one")
    return frame.assign(saving=[-math.log10(sent) if sent else float("nan") for sent in frame["megabytes"]])


#: Settings of the training that a study may vary row by row, and what their axes are called.
VARIED = {"batch_size": "batch size", "rounds_per_epoch": "rounds an epoch", "sources": "sources"}


def varied(study: Study, base: str) -> dict[str, dict[float, str]]:
    """Which rows of a study have which value of a setting: name of the setting → value → row.

    Rows of the method of row ``base`` count that change one setting of :data:`VARIED` and nothing else; ``base`` stands
    among them. All sources are as many as there are other domains.
    """
    every = len(find(study.dataset).DOMAINS) - 1
    first = next(entry for entry in study.methods if entry.title == base)
    panels: dict[str, dict[float, str]] = {}
    for name, title in VARIED.items():
        rows = [
            e
            for e in study.methods
            if (e.method, e.config) == (first.method, first.config) and set(e.training) <= {name}
        ]
        values = {getattr(study.training_of(entry), name) or every: entry.title for entry in rows}
        if len(values) > 1:
            panels[title] = values
    return panels


def provenance(runs: Sequence[tuple[str, Record]]) -> dict[str, str]:
    """Where the records come from, in a reader's words; several values are joined."""
    if not runs:
        return {}
    notes = [record["provenance"] for _, record in runs]
    days = sorted({note["started"][:10] for note in notes})
    seconds = sum(record["seconds"] for _, record in runs)

    def all_of(values) -> str:
        return ", ".join(dict.fromkeys(map(str, values)))

    return {
        "runs": str(len(runs)),
        "computing time": f"{duration(seconds)} in all, {duration(seconds / len(runs))} a run",
        "hardware": all_of(n["device"] if n["device"] != "cpu" else n["cpu"] for n in notes),
        "threads of a run": all_of(n["threads"] for n in notes),
        "largest memory": f"{max(record['peak_mb'] for _, record in runs):,.0f} MB",
        "versions": all_of(f"{name} {v}" for n in notes for name, v in n["versions"].items()),
        "commit": all_of(n["commit"][:10] + (" with changes" if n["dirty"] else "") for n in notes),
        "trained": days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}",
    }


def compact(cells: pd.DataFrame) -> tuple[pd.DataFrame, str]:
    r"""A table of :func:`kd3a.study.table` and what its numbers are; of how many seeds, if all are of as many.

    >>> compact(pd.DataFrame({"t": ["79.3 ± 0.4 (3)"]}))[1], compact(pd.DataFrame({"t": ["79.3 (1)"]}))[1]
    ('mean ± sample standard deviation over seeds; n\xa0=\xa03', 'of one seed')
    """
    told = "mean ± sample standard deviation over seeds"
    cells = cells.rename_axis(index=None, columns=None)
    numbers = {text.rpartition(" ")[2] for text in cells.to_numpy().ravel()}
    if len(numbers) != 1 or numbers == {"–"}:
        return cells, f"{told}; the number of seeds is in brackets"
    number = numbers.pop().strip("()")
    words = f"{told}; n\N{NO-BREAK SPACE}=\N{NO-BREAK SPACE}{number}" if number != "1" else "of one seed"
    return cells.map(lambda text: text.rpartition(" ")[0]), words


#: How the settings of a method's first trial are told.
PUBLISHED = "as published"


def trials(results: Results) -> pd.DataFrame:
    """A search: one line per trial with its settings, criterion and accuracy as means over targets, and whether it is
    its method's choice: the best by the criterion, or for a method that maximises the criterion itself, the one with
    published values. Trials without all their runs are left out.
    """
    lines, recorded = [], results.recorded()
    published = {entry.method: entry for entry in reversed(results.study.methods)}  # the first of each
    for entry in results.study.methods:
        mine = [record for title, _, record in recorded if title == entry.title]
        if mine and all(record and "criterion" in record for record in mine):
            lines.append(
                {
                    "method": entry.method,
                    "trial": entry.title,
                    "settings": changed(entry, published[entry.method]),
                    "criterion": sum(r["criterion"] for r in mine) / len(mine),
                    "accuracy": sum(r["target_accuracy"] for r in mine) / len(mine),
                }
            )
    frame = pd.DataFrame(lines, columns=["method", "trial", "settings", "criterion", "accuracy"])
    if not len(frame):
        return frame.assign(chosen=[])
    groups, own = frame.groupby("method"), frame["method"].map(lambda name: METHODS[name].maximises_information)
    best = frame.index == groups["criterion"].transform("idxmax")
    return frame.assign(chosen=(own & as_published(frame)) | (~own & best))


def as_published(trials: pd.DataFrame) -> pd.Series:
    """Which trials have their method's published values."""
    return trials["settings"].str.startswith(PUBLISHED)


def changed(entry: MethodEntry, published: MethodEntry) -> str:
    """What a trial of a search changes of its method's first one, in a few words.

    The first is as published for these data, which need not be the defaults; those of its values that are not are told.

    >>> one, two = (MethodEntry(method="shot", set=told) for told in ({"beta": 0.1}, {"adapt_rate": 1.0}))
    >>> changed(one, one), changed(two, one)
    ('as published (beta: 0.1)', 'beta: 0.3, adapt_rate: 1.0')
    """

    def words(settings: Mapping[str, Any]) -> str:
        return ", ".join(f"{name}: {value}" for name, value in settings.items())

    if entry is published:
        told = words(entry.config | entry.training)
        return f"{PUBLISHED} ({told})" if told else PUBLISHED
    configs = [METHODS[e.method].Config.read(e.config).model_dump(mode="json") | e.training for e in (entry, published)]
    return words({name: value for name, value in configs[0].items() if (name, value) not in configs[1].items()})


FAMILIES = ("decentralised", "features cross", "centralised", "reads target labels")


def family(entry: MethodEntry) -> str:
    """The family that a row belongs to: what its method needs of others, under its settings."""
    method = METHODS[entry.method]
    private = method.crosses(method.Config.read(entry.config))
    if method.uses_target_labels:
        return "reads target labels"
    return "centralised" if "data" in private else "features cross" if private else "decentralised"


def ranking(results: Results) -> pd.DataFrame:
    """Rows with every target recorded, best first: row, family, mean, std and n of the mean over targets, megabytes."""
    frame, rows = results.frame(), {entry.title: entry for entry in results.study.methods}
    means = summary(frame, list(rows), results.study.domains()).query("target == 'mean' and n > 0")
    means = means.assign(
        family=[family(rows[row]) for row in means["row"]],
        megabytes=means["row"].map(frame.groupby("row")["megabytes"].mean()),
    )
    return means.drop(columns="target").sort_values("mean", ascending=False, ignore_index=True)


def whole_seeds(frame: pd.DataFrame) -> pd.DataFrame:
    """The lines of those seeds of each row that have every target of the frame, so that all rows average the same."""
    targets = frame.groupby(["row", "seed"])["target"].transform("nunique")
    return frame[targets == frame["target"].nunique()]


def exchange(frame: pd.DataFrame, rows: Sequence[str], memory: bool = False) -> pd.DataFrame:
    """What crossed in a run, its accuracy and its time, as means over targets and seeds, in text cells.

    Only seeds with all targets count. Times of processors of several kinds are not compared: they
    are left out. With ``memory`` its peak too, which is a run's own only where every run had a process of its own.
    """
    frame = whole_seeds(frame[frame["row"].isin(rows)])
    forms = {"megabytes": ("MB exchanged", 1, "{:,.1f}"), "accuracy": ("accuracy (%)", 100, "{:.1f}")}
    if frame["processor"].nunique() < 2:
        forms["seconds"] = "seconds", 1, "{:,.0f}"
    if memory:
        forms["memory"] = "peak memory (MB)", 1, "{:,.0f}"
    means = frame.groupby("row")[list(forms)].mean().reindex(rows).astype(float)
    cells = pd.DataFrame(index=rows)
    for name in means:
        title, factor, form = forms[name]
        cells[title] = ["–" if pd.isna(value) else form.format(factor * value) for value in means[name]]
    return cells


# --- tables and figures of the studies ----------------------------------------------------------------------------


def cross(frame: pd.DataFrame, cells: Mapping[tuple[str, str], str], targets: Sequence[str]) -> pd.DataFrame:
    """Mean accuracy over all targets as a table: ``cells`` says which row of the study stands at which row and column.

    Numbers in percent, mean ± sample standard deviation over seeds with n, as text.
    """
    stats = summary(frame, list(dict.fromkeys(cells.values())), list(targets))
    means = stats[stats["target"] == "mean"].set_index("row")
    texts = {place: percent(*means.loc[title, ["mean", "std", "n"]]) for place, title in cells.items()}
    return tabulated(texts)


def tabulated(texts: Mapping[tuple[str, str], str]) -> pd.DataFrame:
    """Cells by (row, column) as a table, in the order in which they come; – where there is none."""
    rows, columns = (list(dict.fromkeys(place[i] for place in texts)) for i in (0, 1))
    return pd.DataFrame([[texts.get((row, column), "–") for column in columns] for row in rows], rows, columns)


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown.

    >>> markdown(("a", "b"), [("1", "2")])
    '| a | b |\\n|---|---|\\n| 1 | 2 |'
    """
    first, *others = (f"| {' | '.join(cells)} |" for cells in (head, *rows))
    return "\n".join([first, "|---" * len(head) + "|", *others])


def trade(frame: pd.DataFrame, rows: Sequence[str], targets: Sequence[str]) -> pd.DataFrame:
    """Megabytes of a run beside its accuracy over all targets: row, megabytes, mean, std, n; unrecorded rows left out.

    Accuracies are fractions, spread over seeds.
    """
    stats = summary(frame, list(rows), list(targets))
    stats = stats[(stats["target"] == "mean") & (stats["n"] > 0)].drop(columns="target").reset_index(drop=True)
    stats.insert(1, "megabytes", stats["row"].map(frame.groupby("row")["megabytes"].mean()))
    return stats


def pareto(cost: Sequence[float], gain: Sequence[float]) -> list[int]:
    """Positions of the points that no other beats, cheapest first: none is at most as dear and at least as good, and
    better in one of the two. Of equal points the first stays.

    >>> pareto([1, 2, 3, 3], [5, 4, 6, 7])
    [0, 3]
    """
    order = sorted(range(len(cost)), key=lambda i: (cost[i], -gain[i], i))
    front: list[int] = []
    for i in order:
        if not front or gain[i] > gain[front[-1]]:
            front.append(i)
    return front


def findings_by(found: Mapping[str, Sequence[Finding]]) -> pd.DataFrame:
    """The same claims on several data: a row for each claim, a column for each data, the lead and its outcome."""
    texts = {
        (f.claim.text, title): f"{f.claim.told(f.lead)}, {f.outcome}" if f.seeds else "–"
        for title, findings in found.items()
        for f in findings
    }
    return tabulated(texts)


def effects(frame: pd.DataFrame, rows: Sequence[str], targets: Sequence[str]) -> pd.DataFrame:
    """What the released code's value of each switch adds to accuracy, largest effect first.

    Once in the paper's company, row ``paper + switch`` against ``paper``; once in its own, ``official`` against
    ``official − switch``. Columns: switch, company, lead, low, high (95 % interval), seeds; fractions.
    """
    pairs = [("paper", row.removeprefix("paper + "), row, "paper") for row in rows if row.startswith("paper + ")]
    back = [row for row in rows if row.startswith("official − ")]
    pairs += [("official", row.removeprefix("official − "), "official", row) for row in back]
    claims = [Claim(switch, above, (below,)) for _, switch, above, below in pairs]
    lines = [
        {"switch": pair[1], "company": pair[0], "lead": f.lead, "low": f.interval[0], "high": f.interval[1]}
        | {"seeds": f.seeds}
        for pair, f in zip(pairs, judge(frame, claims, targets), strict=True)
        if f.seeds
    ]
    table = pd.DataFrame(lines, columns=["switch", "company", "lead", "low", "high", "seeds"])
    size = table["lead"].abs().groupby(table["switch"]).max().rename("size")
    order = table.join(size, on="switch").sort_values(["size", "company"], ascending=[False, False], kind="stable")
    return order.drop(columns="size").reset_index(drop=True)


def effects_table(effects: pd.DataFrame) -> pd.DataFrame:
    """:func:`effects` in text: a row per switch, points of accuracy with their 95 % interval; *clear* where that leaves
    out zero."""
    texts = {}
    for e in effects.itertuples():
        clear = " clear" if e.low > 0 or e.high < 0 else ""
        texts[e.switch, f"in {e.company}"] = Claim("", "").within(e.lead, e.low, e.high) + clear
    table = tabulated(texts)
    return table.reindex(columns=[c for c in ("in paper", "in official") if c in table])


def chances(effects: Sequence[pd.DataFrame]) -> str:
    """How many intervals tables of :func:`effects` hold, how many leave out zero, and how many would by chance.

    >>> chances([pd.DataFrame({"low": [0.1, -0.1], "high": [0.2, 0.1], "seeds": [3, 3]})] * 20)
    'The tables of effects hold 40 intervals; 20 leave out zero. If no switch did anything, about 2 would, by chance.'
    """
    ends = [(e.low, e.high) for table in effects for e in table.itertuples() if e.seeds > 1]
    if not ends:
        return "There are no intervals to count: they need more than one seed."
    clear = sum(low > 0 or high < 0 for low, high in ends)
    told = f"The tables of effects hold {len(ends)} intervals; {clear} leave out zero."
    return f"{told} If no switch did anything, about {0.05 * len(ends):.0f} would, by chance."


def choices(found: pd.DataFrame) -> dict[str, str]:
    """What the choices in a table of :func:`trials` came to, over the methods that the search decides: text by column.

    Leads are means over these methods, in points of accuracy, with a 95 % interval over them.
    """
    lines = regret(found).set_index("method")
    lines = lines.loc[[name for name in lines.index if not METHODS[name].maximises_information]]
    average = found.groupby("method")["accuracy"].mean().reindex(lines.index)
    cost = (lines["best trial"] - lines["as chosen"]).astype(float)

    def lead(leads: pd.Series) -> str:
        return Claim("", "").within(leads.mean(), *interval(leads)) if len(leads) > 1 else "–"

    return {
        "methods decided": str(len(lines)),
        "within a point of the best trial": str(int((cost <= 0.01).sum())),
        "against the average trial": lead((lines["as chosen"] - average).astype(float)),
        "against published values": lead((lines["as chosen"] - lines["as published"]).astype(float).dropna()),
        "costs most": f"{cost.idxmax()} ({100 * cost.max():.1f})" if len(cost) else "–",
    }


def regret(found: pd.DataFrame) -> pd.DataFrame:
    """Of every method in a table of :func:`trials`: accuracy as published, as chosen, and of the best trial."""
    lines = []
    for method, mine in found.groupby("method", sort=False):
        if not mine["chosen"].any():
            continue  # its published trial is not recorded
        chosen = mine[mine["chosen"]].iloc[0]
        published = mine[as_published(mine)]["accuracy"]
        lines.append(
            {
                "method": method,
                "chosen": chosen["settings"],
                "as published": published.iloc[0] if len(published) else float("nan"),
                "as chosen": chosen["accuracy"],
                "best trial": mine["accuracy"].max(),
            }
        )
    return pd.DataFrame(lines, columns=["method", "chosen", "as published", "as chosen", "best trial"])
