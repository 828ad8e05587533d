"""Frozen features: every image through an ImageNet backbone once, so that a study on them costs seconds."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from kd3a import backbones
from kd3a.data import files
from kd3a.data.folder import Folder
from kd3a.data.resident import CHUNK, chunks, readable
from kd3a.data.streamed import StreamedPart
from kd3a.domains import Domain, Part
from kd3a.errors import UserError

RECIPE = "features 1"
CPU_GROUP = 8  # images at a time: more need so much memory that the system spends longer on it than on the network


@dataclass(frozen=True)
class Features:
    """The features that a frozen ``backbone`` makes of the dataset ``images``, kept in the cache folder.

    Their hash is that of the images, the backbone's name and its weights. The last digits of the features themselves
    depend on the machine that extracted them.
    """

    name: str
    images: Folder
    backbone: str = "efficientnet-lite0"

    @property
    def DOMAINS(self) -> tuple[str, ...]:
        return self.images.DOMAINS

    @property
    def CLASSES(self) -> tuple[str, ...]:
        return self.images.CLASSES

    def at(self, data: Path | None) -> Features:
        return replace(self, images=self.images.at(data))

    def available(self, data: Path | None = None) -> str:
        """What is there, in one sentence."""
        try:
            backbones.weight_file(self.backbone)
        except UserError as error:
            return str(error)
        return self.images.available(data)

    def prepare(self, data: Path | None, say: Callable[[str], None] = print) -> None:
        """Say which files are expected; features are extracted and cached by :meth:`load`."""
        backbones.weight_file(self.backbone)
        self.images.prepare(data, say)

    def describe(self, domains: dict[str, Domain]) -> str:
        """What the features are, in place of a picture."""
        width = next(iter(domains.values())).train.shape[0]
        return f"{width:,} features of the frozen {self.backbone} for every image of {self.images.name}."

    def load(self, data: Path | None = None) -> tuple[dict[str, Domain], str]:
        """The domains, as float features, and their hash; extracted now where the cache does not hold them."""
        plan, sha256, _ = self.images.plan(data)
        told = f"{RECIPE} {self.backbone} {backbones.weights(self.backbone)[1]}"
        domains = {}
        for domain, parts in plan.items():
            held = {name: self.held(part, f"{domain}-{name}", content, told) for name, (part, content) in parts.items()}
            domains[domain] = Domain(domain, *self.images.divided(held))
        return domains, hashlib.sha256(f"{told} {sha256}".encode()).hexdigest()

    def held(self, part: StreamedPart, label: str, content: str, told: str) -> Part:
        part = readable(replace(part, augment=False), f"{self.name}-{label}", content)
        told = f"{told} {content} {part.size} {part.mean} {len(part)}"
        arrays = files.cached(f"{self.name}-{label}", told, lambda: extracted(part, self.backbone))
        return Part(torch.from_numpy(arrays["x"]), part.y)


@torch.no_grad()
def extracted(part: Part, backbone: str) -> files.Arrays:
    """The backbone's features of all images, (N, D) float32, in eval mode."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    net = backbones.backbone(backbone)[0].to(device, memory_format=torch.channels_last).eval()
    group = CPU_GROUP if device.type == "cpu" else CHUNK
    images = (x for batch in part.batches(chunks(part)) for x in batch.x.to(device).split(group))
    return {"x": torch.cat([net(x).cpu() for x in images]).numpy()}
