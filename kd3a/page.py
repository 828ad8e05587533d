"""A study page, piece by piece: what every notebook under benchmarks and studies shows, from the records alone.

``claim → set-up → command → table beside the paper's → figure → limits → verdict`` is the order of a page;
each piece is one method of :class:`Page`, so that a page differs from another by its words only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import product
from typing import Any

import pandas as pd
from IPython.display import DisplayObject, Markdown, display

from kd3a import charts, models, plots, plots_studies, report
from kd3a.channel import RefusedMessage
from kd3a.charts import Chart
from kd3a.claims import elsewhere, of
from kd3a.domains import Task
from kd3a.errors import UserError, listing
from kd3a.judging import SAVING, Claim, findings_table, judge, verdict
from kd3a.methods import METHODS
from kd3a.names import words
from kd3a.paper import paper_table
from kd3a.parameters import check_page
from kd3a.plots import Picture
from kd3a.runs import make_run, start
from kd3a.settings import Hardware, Training
from kd3a.study import percent, summary, table
from kd3a.traffic import traffic


def facts_table(facts: Mapping[str, str]) -> Markdown:
    """Two columns, in Markdown."""
    return Markdown(report.markdown(("what", "value"), list(facts.items())))


# --- the page ---------------------------------------------------------------------------------------------------------


class Page:
    """The records of one study at one scale, and what a page says of them."""

    def __init__(
        self,
        notebook: str,
        study: str,
        scale: str,
        results: str = "",
        train: bool = False,
        names: Mapping[str, Any] | None = None,
    ):
        """``notebook`` is the page's path under book/; ``train`` trains what is missing before anything is shown.

        ``names`` are the notebook's: where ``papermill -f`` put a params file there, that file is the study. Parameters
        that cannot be meant end here, before anything is trained.
        """
        self.notebook, self.scale = f"book/{notebook}.ipynb", scale
        check_page(self.notebook, names or {}, results, train, study=study, scale=scale)
        self.told = {"results": results, "train": train, "names": names}
        self.made: dict[str, Page] | None = None  # the same study on other data
        self.found = report.open_results(study, scale, results, names)
        self.study = self.found.study
        self.rows = [entry.title for entry in self.study.methods]
        self.targets = self.study.domains()
        if train and self.task() is None:
            name = self.study.dataset
            display(
                Markdown(f"Nothing is trained: the data of `{name}` are not here; `kd3a data check {name}` says why.")
            )
        elif train:
            self.found.train(Hardware(), quiet=True, say=print)
        self.runs, self.frame = report.finished(self.found), report.outcomes(self.found)

    # --- set-up ---------------------------------------------------------------------------------------------------

    def gaps(self) -> pd.DataFrame | None:
        """A warning and a table of the runs that are not recorded, if any."""
        missing = report.missing(self.found)
        if not len(missing):
            return None
        number = int(missing.to_numpy().sum())
        params = f"params/{self.study.study}/{self.scale}.yaml"
        text = (
            f"{number} of the {len(self.found.grid)} runs of scale `{self.scale}` are not recorded. The next table "
            f"counts them; the rest of the page uses the runs that are there. `kd3a study {params}` trains the missing "
            "ones; it can be stopped and goes on later."
        )
        display(Markdown(f"```{{warning}}\n{text}\n```"))
        return alike(missing.rename_axis(index=None, columns=None), len(self.rows))

    def task(self) -> Task | None:
        """The task of the first target, where its data are at hand."""
        try:
            return self.found.task(self.targets[0])
        except UserError:
            return None

    def setup(self) -> Markdown:
        """Data, network, budget, seeds, hardware, versions and time."""
        t, task, facts = self.study.training, self.task(), {}
        network = t.model
        if task is not None:
            domains = {domain.name: domain for domain in (task.target, *task.sources)}
            facts["samples (train / test)"] = "; ".join(
                f"{name} {len(d.train):,} / {len(d.test):,}" for name, d in domains.items()
            )
            net = models.build(t.model, task.shape, len(task.classes), seed=0)
            network += f", {sum(p.numel() for p in net.parameters()):,} parameters"
        facts |= {
            "network": network,
            "budget": f"{t.epochs} epochs of {t.epoch_samples:,} samples a domain, batches of {t.batch_size}",
            "rounds an epoch": self.every("rounds_per_epoch"),
            "learning rate": f"{t.lr_begin:g} to {t.lr_end:g}, cosine; SGD with momentum {t.momentum:g}",
            "seeds": ", ".join(map(str, self.study.seeds)),
        }
        return facts_table(facts | report.provenance(self.runs))

    def every(self, name: str) -> str:
        """The values that a setting of the training has in the rows."""
        values = {getattr(self.study.training_of(entry), name) for entry in self.study.methods}
        return ", ".join(f"{value:g}" for value in sorted(values)) + (", by row" if len(values) > 1 else "")

    def families(self) -> Markdown:
        """Every row with its method, whether source data leave home for it, and the settings it changes."""
        rows = []
        for entry in self.study.methods:
            told = words(entry.config | entry.training or None)
            rows.append((entry.title, report.family(entry), METHODS[entry.method].summary, told))
        return Markdown(report.markdown(("row", "family", "method", "settings changed"), rows))

    def commands(self) -> Markdown:
        """How to rebuild the page's notebook from the records, and how to train it again."""
        params = f"-f params/{self.study.study}/"
        again = f"{params}quick.yaml -p train True -p results /tmp/kd3a"
        return Markdown(
            f"```sh\n.venv/bin/papermill {self.notebook} out.ipynb \\\n    {params}{self.scale}.yaml\n\n"
            f".venv/bin/papermill {self.notebook} out.ipynb \\\n    {again}\n```"
        )

    # --- results --------------------------------------------------------------------------------------------------

    def table(self, rows: Sequence[str] | None = None) -> pd.DataFrame:
        """Accuracy of each row on each target."""
        cells, told = report.compact(table(self.frame, list(rows or self.rows), self.targets))
        display(Markdown(f"Accuracy on the target's test part in percent, {told}."))
        return cells

    def beside(self, paper: str) -> pd.DataFrame:
        """Our accuracies beside those of table ``paper``, for every row that both have, in the paper's order.

        A row that the paper has twice, as published and with a star as re-implemented, stands twice.
        """
        printed, texts = paper_table(paper), {}
        rows = {row: row.rstrip("*") for row, _ in printed if row.rstrip("*") in self.rows}
        cells = {(s.row, s.target): s for s in summary(self.frame, [*{*rows.values()}], self.targets).itertuples()}
        for row, target in product(rows, (*self.targets, "mean")):
            s = cells[rows[row], target]
            texts[row, target] = f"{100 * s.mean:.1f} / {printed.get((row, target), '–')}" if s.n else "–"
        display(Markdown("Ours / the paper's, in percent."))
        return report.tabulated(texts)

    def cross(self, cells: Mapping[tuple[str, str], str], paper: str = "") -> pd.DataFrame:
        """Mean accuracy over all targets by two names; ``cells`` maps (row, column) to a row of the study.

        With ``paper``, each cell also shows what that table of the paper has at the same place.
        """
        ours, told = report.compact(report.cross(self.frame, cells, self.targets))
        told = f"Mean accuracy over all targets in percent, {told}."
        if paper:
            printed = paper_table(paper)
            texts = {(r, c): f"{ours.loc[r, c]} / {printed.get((r, c), '–')}" for r in ours.index for c in ours.columns}
            ours = report.tabulated(texts)
            told += " After the stroke, what the paper prints, on DomainNet."
        display(Markdown(told))
        return ours

    def gains(
        self,
        above: str,
        below: str,
        paper: Mapping[str, tuple[str, str]],
        also: Mapping[str, tuple[str, str]] | None = None,
    ) -> pd.DataFrame:
        """What row ``above`` has more than ``below``, here and in tables of the paper: name → its two rows.

        Here is this page and those on other data; ``also`` names further pairs of rows, told where they are. Our gains
        have an interval.
        """
        pairs, lines, intervals = {"": (above, below)} | {f" {name}": p for name, p in (also or {}).items()}, {}, {}
        for data, page in {self.study.dataset: self, **self.others()}.items():
            for name, (more, less) in pairs.items():
                if {more, less} <= {*page.rows}:
                    stats = summary(page.frame, [more, less], page.targets).set_index(["row", "target"])["mean"]
                    (found,) = judge(page.frame, [Claim("", more, (less,))], page.targets)
                    means = stats[less, "mean"], stats[more, "mean"], found.lead
                    lines[f"{data}{name}, here"] = [100 * mean for mean in means]
                    intervals[f"{data}{name}, here"] = findings_table([found])["95 % interval"].iloc[0]
        for name, (more, less) in paper.items():
            printed = paper_table(name)
            low, high = (float(printed[row, "mean"]) for row in (less, more))
            lines[f"{name}, in the paper"] = [low, high, high - low]
        cells = pd.DataFrame.from_dict(lines, orient="index", columns=[below, above, "gain"])
        texts = cells.apply(lambda c: c.map(lambda v: "–" if pd.isna(v) else f"{v:{'+' * (c.name == 'gain')}.1f}"))
        texts = texts.map(lambda text: text.replace("-", "−"))
        return texts.assign(**{"95 % interval": [intervals.get(line, "–") for line in texts.index]})

    def means(self, columns: Mapping[str, str]) -> pd.DataFrame:
        """Columns of the records by row in percent, means over targets and seeds; ``columns`` gives their titles."""
        means = 100 * report.whole_seeds(self.frame).groupby("row")[list(columns)].mean().reindex(self.rows)
        cells = means.map(lambda value: "–" if pd.isna(value) else f"{value:.1f}").rename(columns=columns)
        return cells.rename_axis(index=None)

    def polls(self, row: str, epochs: Sequence[int]) -> pd.DataFrame:
        """The vote of a row after some epochs on each target, means over seeds: share accepted / of it right."""
        found = report.polls(self.runs)
        means = 100 * found[found["row"] == row].groupby(["target", "epoch"])[["accepted", "accuracy"]].mean()
        texts = {at: f"{m['accepted']:.0f} / {m['accuracy']:.0f}" for at, m in means.dropna().iterrows()}
        cells = [[texts.get((target, epoch), "–") for epoch in epochs] for target in self.targets]
        return pd.DataFrame(cells, list(self.targets), [f"epoch {epoch}" for epoch in epochs])

    def passage(self, rows: Sequence[str], epoch: int) -> pd.DataFrame:
        """Accuracy after some epoch → after the last one, in percent and over seeds, of rows that go on after it."""
        found = report.history(self.runs).query("row in @rows")
        last = found.groupby("row")["epoch"].transform("max")
        then = found[found["epoch"] == epoch].groupby(["row", "target"])["accuracy"].mean()
        end = found[found["epoch"] == last].groupby(["row", "target"])["accuracy"].mean()
        texts = {at: f"{100 * then[at]:.1f} → {100 * end[at]:.1f}" for at in then.index.intersection(end.index)}
        cells = [[texts.get((row, target), "–") for target in self.targets] for row in rows]
        return pd.DataFrame(cells, list(rows), list(self.targets))

    def shares(self, row: str) -> pd.DataFrame:
        """The weights that a row gives to domains, by target, in percent: means over all epochs and seeds."""
        mine = [(title, record) for title, record in self.runs if title == row]
        means = {name: report.weights(mine, name).groupby("target")["weight"].mean() for name in self.targets}
        cells = pd.DataFrame(means).reindex(self.targets)
        return cells.map(lambda share: "–" if pd.isna(share) else f"{100 * share:.0f}").rename_axis(index=None)

    def bytes_ratio(self, less: str, more: str) -> Markdown:
        """How many times the bytes of one row another exchanges, in a sentence."""
        sent = self.frame.groupby("row")["megabytes"].mean()
        if not {less, more} <= set(sent.index):
            return Markdown("The bytes of the two rows cannot be compared yet.")
        return Markdown(f"*{more}* exchanges {sent[more] / sent[less]:.1f} times the bytes of *{less}*.")

    def bars(self, name: str, rows: Sequence[str] | None = None) -> Picture:
        """The table as bars, saved as ``name``."""
        rows = list(rows or self.rows)
        return plots.save(plots.accuracy_bars(summary(self.frame, rows, self.targets), rows, self.targets), name)

    def ranking(self) -> pd.DataFrame:
        """All rows, best first: family, mean accuracy over targets, and bytes beside it."""
        found = report.ranking(self.found)
        cells, told = report.compact(
            pd.DataFrame({"accuracy (%)": list(map(percent, found["mean"], found["std"], found["n"]))})
        )
        display(Markdown(f"Accuracy over all targets, {told}."))
        cells.insert(0, "family", found["family"])
        return cells.assign(**{"MB exchanged": found["megabytes"].map("{:,.1f}".format)}).set_axis(
            found["row"].tolist()
        )

    def ranked(self, name: str) -> Picture:
        """The same as points with whiskers, saved as ``name``."""
        return plots.save(plots_studies.ranking(report.ranking(self.found)), name)

    def curves(self, name: str, rows: Sequence[str] | None = None) -> Picture:
        """Accuracy by epoch, saved as ``name``."""
        return plots.save(plots.curves(report.history(self.runs), list(rows or self.rows)), name)

    def measures(
        self, name: str, lines: Sequence[str], points: Sequence[str], values: Mapping[str, str], xlabel: str
    ) -> Picture:
        """Columns of the records against rows of the study, saved as ``name``."""
        return plots.save(plots_studies.measures(self.frame, lines, points, values, xlabel), name)

    def weights(self, name: str, panels: Mapping[str, Mapping[str, str]], reference: str = "") -> Picture:
        """The bad domain's weight by epoch, saved as ``name``."""
        history = report.weights(self.runs, report.bad_domain(self.study) or "")
        return plots.save(plots_studies.weight_curves(history, panels, reference), name)

    def trade(self, name: str, families: Mapping[str, Sequence[str]]) -> Picture:
        """Accuracy against bytes, saved as ``name``."""
        points = report.trade(self.frame, [row for rows in families.values() for row in rows], self.targets)
        return plots.save(plots_studies.accuracy_against_bytes(points, families), name)

    def trade_chart(self, families: Mapping[str, Sequence[str]]) -> Chart | None:
        """The same to go through point by point."""
        points = report.trade(self.frame, [row for rows in families.values() for row in rows], self.targets)
        return charts.trade_chart(points, families)

    def weight_chart(self, panels: Mapping[str, Mapping[str, str]], reference: str = "") -> Chart | None:
        """The bad domain's weight by epoch, to go through epoch by epoch."""
        return charts.weight_chart(report.weights(self.runs, report.bad_domain(self.study) or ""), panels, reference)

    def effects(self, name: str) -> Picture:
        """What each switch adds, ranked, saved as ``name``."""
        return plots.save(plots_studies.ranked_effects(report.effects(self.frame, self.rows, self.targets)), name)

    def effects_table(self) -> pd.DataFrame:
        """The same in numbers."""
        return report.effects_table(report.effects(self.frame, self.rows, self.targets))

    def chances(self) -> Markdown:
        """How many of the effects, here and on other data, leave out zero, and how many would by chance."""
        pages = (self, *self.others().values())
        return Markdown(report.chances([report.effects(page.frame, page.rows, page.targets) for page in pages]))

    def refusal(self, attack: str) -> Markdown:
        """What the first upload of an attack comes to, tried out now with a single batch."""
        task = self.task()
        if task is None:
            return Markdown("The data of this study are not at hand, so the attack cannot be tried out.")
        once = {"attack": attack, "epochs": 1, "epoch_samples": self.study.training.batch_size}
        training = Training.read(self.study.training.model_dump() | once)
        method = start(make_run(task.dataset, task.target.name, "kd3a", 0, training, {}), task, Hardware())
        try:
            method.run(method.stages()[0])
        except RefusedMessage as refused:
            return Markdown(f"> {refused}")
        return Markdown("The upload was accepted.")

    def exchange(self, rows: Sequence[str] | None = None, memory: bool = False) -> pd.DataFrame:
        """Bytes beside accuracy and time, and beside memory where runs had a process of their own."""
        return report.exchange(self.frame, list(rows or self.rows), memory).rename_axis(index=None)

    def forecast(self, rows: Sequence[str]) -> pd.DataFrame | Markdown:
        """Megabytes that a run of these rows sent, beside what :mod:`kd3a.traffic` says without training."""
        task = self.task()
        if task is None:
            return Markdown("The data of this study are not at hand, so that no bytes can be forecast.")
        sent = self.frame[self.frame["target"] == task.target.name].groupby("row")["megabytes"].mean()
        texts = {}
        for entry in (entry for entry in self.study.methods if entry.title in rows):
            told = traffic(entry.method, task, self.study.training_of(entry), entry.config)
            texts[entry.title, "recorded"] = f"{sent[entry.title]:,.2f}" if entry.title in sent.index else "–"
            texts[entry.title, "forecast"] = f"{sum(told.values()) / 1e6:,.2f}"
        display(Markdown(f"Megabytes of a run with target `{task.target.name}`."))
        return report.tabulated(texts)

    def sensitivity(self, name: str, base: str) -> Picture:
        """Accuracy against the settings in which rows differ from row ``base``, a panel each, saved as ``name``."""
        return plots.save(plots_studies.sensitivity(self.frame, report.varied(self.study, base)), name)

    def costs(self, name: str, rows: Sequence[str]) -> Picture:
        """Time, memory and bytes of rows as bars, saved as ``name``."""
        return plots.save(plots_studies.cost_bars(self.frame, rows), name)

    # --- a search -------------------------------------------------------------------------------------------------

    def trials(self) -> pd.DataFrame:
        """Every trial of a search, the chosen ones marked."""
        found = report.trials(self.found)
        found.insert(0, "chosen", found.pop("chosen").map({True: "chosen", False: ""}))  # first: in sight on a phone
        return percents(found.drop(columns="method").set_index("trial"), "criterion", "accuracy")

    def criterion(self, name: str) -> Picture:
        """Accuracy of the trials against their criterion, saved as ``name``."""
        return plots.save(plots_studies.criterion(report.trials(self.found)), name)

    def regret(self) -> pd.DataFrame:
        """What choosing without labels costs, method by method."""
        cells = report.regret(report.trials(self.found)).set_index("method")
        return percents(cells, "as published", "as chosen", "best trial")

    # --- the verdict ----------------------------------------------------------------------------------------------

    def compare(self, claims: Sequence[Claim]) -> pd.DataFrame:
        """What the records say of each claim."""
        return findings_table(judge(self.frame, claims, self.targets)).rename_axis(index=None)

    def others(self) -> dict[str, Page]:
        """Pages of the same study on other data, by what these are called."""
        if self.made is None:  # once: a page may train what is missing
            studies, notebook = elsewhere(self.study.study, self.scale), self.notebook[len("book/") : -len(".ipynb")]
            self.made = {title: Page(notebook, name, self.scale, **self.told) for title, name in studies.items()}
        return self.made

    def elsewhere(self, *shows: Callable[[Page], Any]) -> pd.DataFrame | None:
        """What ``shows`` make of :meth:`others`, their table by default, and what all say of the claims.

        The study here is called by its dataset. Rows and claims that make no sense on other data are missing.
        """
        name, pages = self.study.study, self.others()
        for title, page in pages.items():
            display(Markdown(f"**{title}**, targets {listing(page.targets)}:"))
            for show in (Page.gaps, *((shows or [Page.table]) if len(page.frame) else ())):
                if (shown := show(page)) is not None:
                    display(shown)
        everywhere = {self.study.dataset: self, **{title: page for title, page in pages.items() if len(page.frame)}}
        found = {t: judge(page.frame, of(name, page.rows), page.targets) for t, page in everywhere.items()}
        return report.findings_by(found) if len(found) > 1 else None

    def differences(self, pairs: Sequence[tuple[str, str]]) -> pd.DataFrame:
        """What the first row of each pair has more than the second, with its interval; nothing is judged."""
        findings = self.compare([Claim(f"{high} against {low}", high, (low,)) for high, low in pairs])
        return findings[["measured", "95 % interval"]].rename(columns={"measured": "points of accuracy"})

    def leads(self, cells: Mapping[tuple[str, str], tuple[str, ...]], what: str = "accuracy") -> pd.DataFrame:
        """The same by two names: ``cells`` maps (row, column) to a pair, or to a pair and the value of a claim.

        ``what`` says in words of what the points are.
        """
        claims = [Claim("", high, (low,), value=(*value, "accuracy")[0]) for high, low, *value in cells.values()]
        texts, seeds = {}, set()
        for place, found in zip(cells, judge(self.frame, claims, self.targets), strict=True):
            texts[place] = found.claim.within(found.lead, *found.interval) if found.seeds else "–"
            seeds |= {found.seeds} - {0}
        told = f"; n\u00a0=\u00a0{' or '.join(map(str, sorted(seeds)))}" if seeds else ""
        display(Markdown(f"Points of {what}, with the 95 % interval over seeds in brackets{told}."))
        return report.tabulated(texts)

    def verdict(self, claims: Sequence[Claim], word: str = "reproduced") -> DisplayObject:
        """The findings, and in a word what they come to; ``word`` is another one where the paper claims nothing."""
        findings = judge(self.frame, claims, self.targets)
        display(findings_table(findings).rename_axis(index=None))
        answer = verdict(findings, word)
        words = [f"**{answer.capitalize()}**."]
        if answer == "open":
            words.append("The records do not suffice to judge every statement yet.")
        if self.scale == "quick":
            words.append("This scale tests the code: nothing has converged, so it says little.")
        return Markdown(" ".join([*words, self.manner(claims)]))

    def manner(self, claims: Sequence[Claim]) -> str:
        """How leads are counted, in a few sentences."""
        several = (
            " Against several rows, or on every target, the {term}`smallest lead` counts; its interval allows for the "
            "choice."
        )
        return (
            f"Leads are in points of {measured(claims)} over the mean of all targets, seed by seed: mean ± sample "
            "standard deviation, the number of seeds in brackets, and the 95 % interval of Student's t; *not clear*: "
            "the interval reaches to the other side of what is needed."
        ) + (several if any(len(claim.below) > 1 or claim.target for claim in claims) else "")


def alike(counts: pd.DataFrame, whole: int) -> pd.DataFrame:
    """The table with rows of the same numbers in one line; ``whole`` is how many rows there are in all.

    >>> list(alike(pd.DataFrame({"x": [1, 1, 2]}, list("abc")), 3).index)
    ['a; b', 'c']
    """
    lines: dict[tuple, list[str]] = {}
    for row in counts.itertuples():
        lines.setdefault(row[1:], []).append(row[0])
    names = ["; ".join(rows) if len(rows) < whole else "every row" for rows in lines.values()]
    return pd.DataFrame(list(lines), names, counts.columns)


def percents(cells: pd.DataFrame, *columns: str) -> pd.DataFrame:
    """The table with these columns as percentages of one decimal."""
    shown = {c: ["–" if pd.isna(v) else f"{100 * v:.1f}" for v in cells[c]] for c in columns}
    return cells.assign(**shown).rename_axis(index=None)


def choices(pages: Mapping[str, Page]) -> pd.DataFrame:
    """What the choices of several searches came to, a line each; ``pages`` by what their data are called."""
    found = {title: report.choices(report.trials(page.found)) for title, page in pages.items()}
    return pd.DataFrame.from_dict(found, orient="index")


def promise(claims: Sequence[Claim], word: str = "reproduced") -> Markdown:
    """The claims as they are judged below, and what their outcomes would be called."""
    lines = [f"- *{c.text}*{tolerance(0 if c.printed or c.alike or c.value == SAVING else c.margin)}." for c in claims]
    outcome = f"Holds: **{word}**. Fails: **not {word}**."
    if len(claims) > 1:
        outcome = f"All of them: **{word}**. Some of them: **partly {word}**. None: **not {word}**."
    return Markdown("\n".join(lines) + "\n\n" + outcome)


def tolerance(margin: float) -> str:
    """How much a claim asks for, in words.

    >>> tolerance(0.03), tolerance(0), tolerance(-0.01)
    (' by at least 3 points', '', ', or loses at most 1 point')
    """
    size = f"{abs(100 * margin):g} point" + "s" * (abs(100 * margin) != 1)
    return f" by at least {size}" if margin > 0 else f", or loses at most {size}" if margin < 0 else ""


#: What a claim may be about, in words.
NAMES = {
    "accuracy": "accuracy",
    "bad_weight": "the bad domain's weight at the end",
    "mean_bad_weight": "its mean over the training",
    "vote_accuracy": "the vote's accuracy",
}


def measured(claims: Sequence[Claim]) -> str:
    """What the claims compare, in words."""
    values = {claim.value for claim in claims}
    return " or ".join([NAMES[value] for value in NAMES if value in values])
