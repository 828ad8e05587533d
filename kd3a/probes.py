"""The privacy study's params and runs: one attack on one update, scored against the images that caused it.

A probe trains a fresh network for a few steps on private images, as a source would, hands the update to an attack and
compares the images that come out with the private ones. The same guesses are compared, in the same way, with *other*
images of the same classes: what that control scores was not learnt from the update.
"""

from __future__ import annotations

import base64
import io
import math
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import torch
from PIL import Image
from pydantic import AfterValidator, Field
from torch import Tensor

from kd3a import leakage, models, records
from kd3a.domains import Part, Task
from kd3a.errors import UserError
from kd3a.leakage import Gradient, Recovery
from kd3a.runs import peak_bytes
from kd3a.settings import Hardware, KnownModel, Scale, Settings
from kd3a.trainer import pick_device

RECOVERED = 20.0  # decibels: a root-mean-square error of a tenth of the pixels' range
NAMES = {"dlg": "DLG", "idlg": "iDLG", "inversion": "gradient inversion"}
PICTURES = 2  # observations of a cell whose first guess is kept as a picture

# --- params -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Seen:
    """What an update sums up: ``steps`` of local training on ``batch`` images each."""

    steps: int
    batch: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read ``4x1``.

        >>> Seen.parse("4x1").title, Seen.parse("20x50").images
        ('4 × 1', 1000)
        """
        numbers = text.split("x")
        if len(numbers) != 2 or not all(n.isdigit() and int(n) > 0 for n in numbers):
            raise ValueError("write steps x images in a step, such as 4x1")
        return cls(int(numbers[0]), int(numbers[1]))

    @property
    def title(self) -> str:
        return f"{self.steps} × {self.batch}"

    @property
    def images(self) -> int:
        return self.steps * self.batch


def _readable(texts: list[str]) -> list[str]:
    for text in texts:
        Seen.parse(text)
    return texts


class AttackEntry(Settings):
    """One attack and the updates it is tried on."""

    attack: Literal["dlg", "idlg", "inversion"]
    """Which attack; see kd3a.leakage."""
    iterations: int = Field(ge=1)
    """Of Adam for inversion; of L-BFGS, each about 20 evaluations, for the others."""
    smoothness: float = Field(0.01, ge=0)
    """Weight of the total variation, for inversion."""
    seen: Annotated[list[str], AfterValidator(_readable)] = Field(min_length=1)
    """Updates as steps x images in a step: 1x1 is the gradient of one image."""


@dataclass(frozen=True)
class Cell:
    """One row of the study's table: a network, an attack, an update."""

    network: str
    entry: AttackEntry
    seen: Seen

    @property
    def title(self) -> str:
        return f"{self.network} · {self.entry.attack} · {self.seen.title}"


class PrivacyStudy(Settings):
    """A params file of attacks: one domain's images, networks, and attacks on updates of several sizes."""

    study: str
    """Name of the study."""
    scale: Scale
    """quick: seconds an attack; cpu: what the book publishes; paper: the attacks' own budgets, for a GPU."""
    dataset: str
    """Name of the dataset."""
    domain: str
    """The source that is attacked."""
    images: int = Field(ge=1)
    """Images that every cell tries to recover, at least."""
    updates: int = Field(1, ge=1)
    """Updates that every cell attacks, at least: images of one are searched for together, and vary less."""
    rate: float = Field(0.05, gt=0)
    """Learning rate of the local steps: plain SGD."""
    most: int = Field(50, ge=1)
    """Images that inversion looks for at a time; larger updates are read as one gradient of so many."""
    networks: list[KnownModel] = Field(min_length=1)
    """Names of the networks; see kd3a.models."""
    attacks: list[AttackEntry] = Field(min_length=1)
    """The attacks."""

    @property
    def methods(self) -> list[Cell]:
        """The rows of the table."""
        return [
            Cell(network, entry, Seen.parse(text))
            for network in self.networks
            for entry in self.attacks
            for text in entry.seen
        ]

    def domains(self) -> list[str]:
        return [self.domain]

    def runs(self) -> list[tuple[str, Probe]]:
        """The grid as (row title, probe), observations outermost, so that an early stop leaves all rows begun."""
        probes = []
        for cell in self.methods:
            attack = cell.entry.model_dump(exclude={"seen"})
            wanted = 1 if cell.entry.attack != "inversion" else min(cell.seen.images, self.most)
            for seed in range(max(self.updates, math.ceil(self.images / wanted))):
                setting = Setting(cell.network, cell.seen.steps, cell.seen.batch, self.rate, wanted, **attack)
                probes.append((cell.title, Probe(self.dataset, self.domain, seed, setting)))
        return sorted(probes, key=lambda pair: pair[1].seed)


# --- one probe --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Setting:
    """Everything a probe is told besides its data and seed."""

    model: str
    steps: int
    batch: int
    rate: float
    wanted: int
    attack: str
    iterations: int
    smoothness: float


@dataclass(frozen=True)
class Probe:
    """What determines an attack's result, apart from the data's hash. The seed draws images, weights and a guess."""

    dataset: str
    target: str
    seed: int
    setting: Setting

    @property
    def method(self) -> str:
        return self.setting.attack

    @property
    def settings(self) -> dict[str, Any]:
        """The setting in a flat dict, as the record shows it."""
        return asdict(self.setting)

    def facts(self) -> dict[str, Any]:
        """What a record says of the probe, and all that :func:`probe_of` needs."""
        names = ("dataset", "target", "method", "seed")
        return {name: getattr(self, name) for name in names} | {"config": self.settings}

    @property
    def samples(self) -> int:
        """How often the attack follows a step: what its time goes by."""
        s = self.setting
        return s.iterations * (s.steps if s.wanted == s.steps * s.batch else 1)

    def key(self, data_sha256: str) -> str:
        """The probe's name: a hash of what it was told."""
        return records.key_of({"data_sha256": data_sha256} | asdict(self))


def probe_of(record: records.Record) -> Probe:
    """The probe that a record, or :meth:`Probe.facts`, tells of."""
    return Probe(record["dataset"], record["target"], record["seed"], Setting(**record["config"]))


def execute(
    probe: Probe, task: Task, hardware: Hardware, study: str = "", scale: str = "", out: Path | None = None
) -> records.Record:
    """Attack one update and return the record; with ``out`` it is appended to that file."""
    torch.set_num_threads(hardware.threads)
    device = pick_device(hardware.device)
    notes, began = records.provenance(device, hardware.threads), time.monotonic()
    part, s = task.target.train.to(device), probe.setting
    if isinstance(part.mean, tuple):
        raise UserError(f"Attacks need images with one scale for all channels, which {probe.dataset} has not.")
    rows, others = draw(part.y.cpu(), s.steps * s.batch, probe.seed)
    net = models.build(s.model, task.shape, len(task.classes), probe.seed).to(device).eval()
    x, y = part.inputs(rows.to(device)), part.y[rows.to(device)]
    found = attacked(net, leakage.local_update(net, x, y, s.steps, s.rate), y, task.shape, s, probe.seed)
    truth, control = (shown(part, part.inputs(r.to(device))) for r in (rows, others))
    guess = shown(part, found.x.nan_to_num(0.0))  # a search that blew up has found nothing: grey
    average = shown(part, part.inputs(torch.arange(len(part), device=device))).mean(0)
    pairs = leakage.matched(truth, guess)
    record: dict[str, Any] = {
        "key": probe.key(task.sha256),
        "study": study,
        "scale": scale,
        "dataset": probe.dataset,
        "data_sha256": task.sha256,
        "method": s.attack,
        "target": probe.target,
        "seed": probe.seed,
        "config": probe.settings,
        "loss": [found.trace[0], found.loss],
        "images": {
            "attack": scores(truth, guess, pairs),
            "control": scores(control, guess, leakage.matched(control, guess)),
            "mean image": scores(truth, average[None], [(0, t) for _, t in pairs]),
        },
    }
    if probe.seed < PICTURES:
        g, t = pairs[0]
        record["pictures"] = {"private": png(truth[t]), "guess": png(guess[g])}
    record |= {
        "seconds": round(time.monotonic() - began, 2),
        "peak_mb": round(peak_bytes(device) / 2**20, 1),
        "provenance": notes,
    }
    if out:
        records.append(out, record)
    return record


def attacked(
    net: models.Net, update: Gradient, labels: Tensor, shape: tuple[int, ...], s: Setting, seed: int
) -> Recovery:
    """What the attack makes of an update. Inversion is told the labels, and follows the local steps where it looks for
    all their images; else it reads the update as one gradient, as the others do."""
    if s.attack != "inversion":
        attack = leakage.dlg if s.attack == "dlg" else leakage.idlg
        return attack(net, update, (1, *shape), steps=s.iterations, seed=seed)
    steps = s.steps if s.wanted == len(labels) else 1
    return leakage.inversion(net, update, labels[: s.wanted], shape, s.iterations, s.smoothness, seed, steps, s.rate)


def draw(labels: Tensor, number: int, seed: int) -> tuple[Tensor, Tensor]:
    """Private images and, for each, another of the same class that is not among them: their rows, both (number,).

    Other images are used again where a class has too few.
    """
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    rows, rest = order[:number], order[number:]
    others = torch.empty_like(rows)
    for label in labels[rows].unique():
        mine, pool = (labels[rows] == label).nonzero().flatten(), rest[labels[rest] == label]
        others[mine] = pool[torch.arange(len(mine)) % len(pool)]
    return rows, others


def scores(truth: Tensor, guess: Tensor, pairs: list[tuple[int, int]]) -> dict[str, list[float]]:
    """PSNR and SSIM of every pair (guess, truth)."""
    told = [leakage.fidelity(truth[t], guess[g]) for g, t in pairs]
    return {name: [round(one[name], 4) for one in told] for name in ("psnr", "ssim")}


def shown(part: Part, x: Tensor) -> Tensor:
    """Network inputs as pixels in [0, 1], on the CPU."""
    return leakage.pixels(x, part.mean, part.std).cpu()


def png(image: Tensor) -> str:
    """An image (C, H, W) with pixels in [0, 1] as text."""
    pixels = (image.permute(1, 2, 0) * 255).round().to(torch.uint8).numpy()
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return base64.b64encode(file.getvalue()).decode()


def picture(text: str) -> Tensor:
    """The image (C, H, W) with pixels in [0, 1] that :func:`png` wrote."""
    with Image.open(io.BytesIO(base64.b64decode(text))) as image:
        return (
            torch.frombuffer(bytearray(image.tobytes()), dtype=torch.uint8)
            .view(image.height, image.width, -1)
            .permute(2, 0, 1)
            / 255
        )
