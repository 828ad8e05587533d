"""The page of the privacy study, piece by piece; what it shares with other studies is in :mod:`kd3a.page`."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
from IPython.display import Markdown, display

from kd3a import models, plots, plots_privacy, report
from kd3a.judging import Claim, interval
from kd3a.page import Page, facts_table
from kd3a.plots import Picture
from kd3a.probes import NAMES, RECOVERED, Seen, picture
from kd3a.reconstructions import overview, rivals


class PrivacyPage(Page):
    """The recorded attacks at one scale, and what the page says of them."""

    def seen(self) -> list[str]:
        """What updates sum up, one image first, a round last."""
        texts = {text for entry in self.study.attacks for text in entry.seen}
        order = sorted(map(Seen.parse, texts), key=lambda seen: (seen.batch > 1, seen.images))
        return [seen.title for seen in order]

    def setup(self) -> Markdown:
        """Images, networks, local training, attacks, hardware, versions and time."""
        task, facts = self.task(), {}
        if task is not None:
            facts["private images"] = f"drawn from {len(task.target.train):,} of the source `{self.study.domain}`"
            for name in self.study.networks:
                net = models.build(name, task.shape, len(task.classes), seed=0)
                facts[f"network `{name}`"] = f"{sum(p.numel() for p in net.parameters()):,} parameters, untrained"
        facts["local training"] = f"SGD at {self.study.rate:g}, no momentum, no mixup, BatchNorm in eval mode"
        for entry in self.study.attacks:
            steps = "L-BFGS steps" if entry.attack != "inversion" else "iterations of signed Adam"
            facts[NAMES[entry.attack]] = f"{entry.iterations:,} {steps}"
        facts["images a row"] = f"{self.study.images} or more, of {self.study.updates} or more updates"
        return facts_table(facts | report.provenance(self.runs))

    def overview(self, network: str) -> pd.DataFrame:
        """PSNR, SSIM and recovered images of a network's rows beside their controls, and what the mean image scores."""
        frame = self.found.frame()
        mine = frame[frame["network"] == network]
        cells = overview(mine).replace(" ± ", "\u00a0±\u00a0", regex=True)  # lines break at the stroke alone
        average = mine[mine["kind"] == "mean image"].groupby("row")
        added = {
            "mean image: PSNR (dB)": ("psnr", 1, "{:.1f}"),
            "mean image: recovered (%)": ("recovered", 100, "{:.0f}"),
        }
        for title, (column, factor, form) in added.items():
            means = average[column].mean()
            cells[title] = [form.format(factor * means[rivals(row)[1]]) for row in cells.index]
        parts = (row.replace(" × ", "\u00a0×\u00a0").split(" · ") for row in cells.index)
        cells.index = [f"{NAMES[attack]}, {seen}" for _, attack, seen in parts]
        told = (
            "attack / control, mean ± sample standard deviation over images; the mean image on the same private images."
        )
        display(Markdown(f"`{network}`: {told}"))
        return cells

    def chance(self) -> Markdown:
        """The updates of which no attack makes as much as a guess that needs none, in a few sentences."""
        frame = self.found.frame()
        if frame.empty:
            return Markdown("No attack is recorded yet.")
        psnr = frame.pivot_table("psnr", ["network", "seen", "attack", "seed"], "kind")
        lead = (psnr["attack"] - psnr["mean image"]).rename("lead").reset_index()
        lead["update"] = lead["seed"].str.partition(".")[0]
        leads = lead.groupby(["network", "seen", "attack", "update"])["lead"].mean()
        leads = leads.groupby(["network", "seen", "attack"])
        below = leads.apply(lambda lead: interval(lead)[1] < 0).groupby(["network", "seen"]).all()
        failed = []
        for network in self.study.networks:
            titles = [seen.replace(" ", "\u00a0") for seen in self.seen() if below.get((network, seen), False)]
            failed.append(f"`{network}` {', '.join(titles) or 'none'}")
        return Markdown(
            f"The mean of all images of `{self.study.domain}` is a guess that needs no update. Updates for which every "
            "attack that was tried has a lower PSNR than it, with the whole 95 % interval over updates: "
            f"{'; '.join(failed)}. There the search itself has failed, so that a share of zero measures the attack and "
            "not how safe the update is."
        )

    def curves(self, name: str) -> Picture:
        """PSNR and SSIM by what the update sums up, saved as ``name``."""
        return plots.save(plots_privacy.fidelity_curves(self.found.frame(), self.seen()), name)

    def gallery(self, name: str) -> Picture:
        """The first observation of every cell: private images and guesses, saved as ``name``."""
        rows: dict[str, dict] = {}
        for network in self.study.networks:
            for line in ("private", "inversion", "dlg", "idlg"):
                title = f"{network}\n{NAMES.get(line, line).replace(' ', chr(10))}"
                rows[title] = {}
                for cell, record in self.runs:
                    model, attack, seen = cell.split(" · ")
                    wanted = "inversion" if line == "private" else line
                    if (model, attack, record["seed"]) == (network, wanted, 0):
                        image = picture(record["pictures"]["private" if line == "private" else "guess"])
                        psnr = record["images"]["attack"]["psnr"][0]
                        rows[title][seen] = (image, "" if line == "private" else f"{psnr:.1f} dB")
        return plots.save(plots_privacy.reconstruction_grid(rows, self.seen()), name)

    def manner(self, claims: Sequence[Claim]) -> str:
        return (
            f"Leads are in points of the share of images recovered, that is, of {RECOVERED:g} dB or more, image by "
            "image: mean ± sample standard deviation, the number of images in brackets, and the 95 % interval of "
            "Agresti and Min for paired shares, in which all images of one update count as one. Rows of which an "
            "update is missing are not judged."
        )
