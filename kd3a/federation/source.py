"""A source at home: it takes an order and the shared model, trains, keeps its momentum, and returns its upload."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from kd3a.channel import Message
from kd3a.errors import UserError
from kd3a.federation import order as orders
from kd3a.federation import wire
from kd3a.federation.files import Holding
from kd3a.methods.base import in_process
from kd3a.runs import start
from kd3a.settings import Hardware
from kd3a.trainer import Party


@dataclass(frozen=True)
class Answer:
    """What leaves a source: its upload, and the loss of its training for the target's log."""

    upload: Message
    loss: float


def answer(holding: Holding, state: Path, text: str, received: bytes, hardware: Hardware) -> Answer:
    """Do what an order says with the domain that is here; ``state`` is the folder of what must survive a restart.

    The method is built as for a run in one process, with all other domains empty, and trains its one source with the
    same function.
    """
    order = orders.read(text)
    task = holding.task(order.sources, order.target)
    if (order.dataset, order.data_sha256) != (task.dataset, task.sha256):
        raise UserError(f"Domain {holding.domain.name} here is not of the data that the target names; export it again.")
    run, stage, name = order.run, order.stage, holding.domain.name
    orders.admit(run)
    torch.set_num_threads(hardware.threads)
    method = start(run, task, hardware)
    method.channel.round = stage.round
    method.sources = {name: method.sources[name]}
    shelf = Shelf(state, f"{order.key}-{name}")
    shelf.load(method.sources[name], stage.round)
    form = method.broadcast()  # of this source's own network: the target's has the same names and shapes
    message = wire.decode(received, order.target, form)
    method.channel.check(message, order.target, like=form)
    upload = in_process(method, stage, message, None)[name]
    shelf.save(method.sources[name], stage.round + 1)
    return Answer(upload, method.losses[name].item())


class Shelf:
    """The states of one party in one run, by the number of rounds done.

    The last two are kept: a target that was cut off asks for its unfinished round once more.
    """

    def __init__(self, folder: Path, name: str):
        self.folder, self.name = folder, name
        folder.mkdir(parents=True, exist_ok=True)

    def rounds(self) -> list[int]:
        """For how many rounds done there is a state."""
        found = (path.name.removeprefix(f"{self.name}.").split(".")[0] for path in self.folder.glob(f"{self.name}.*"))
        return sorted({int(text) for text in found if text.isdigit()})

    def path(self, rounds: int) -> Path:
        return self.folder / f"{self.name}.{rounds}.safetensors"

    def load(self, party: Party, rounds: int) -> int:
        """Put the party into its state after ``rounds`` rounds, or the last before it if it missed some.

        Returns how many rounds that state has behind it; none leaves the party as it was built.
        """
        for known in reversed([r for r in self.rounds() if 0 < r <= rounds]):
            try:
                party.load(load_file(self.path(known)))
            except (OSError, SafetensorError):
                continue
            return known
        return 0

    def save(self, party: Party, rounds: int) -> None:
        tensors = {name: t.detach().cpu().contiguous() for name, t in party.state().items()}
        draft = self.path(rounds).with_suffix(".draft")
        save_file(tensors, draft)
        os.replace(draft, self.path(rounds))
        before = [r for r in self.rounds() if r < rounds]
        for old in [*before[:-1], *(r for r in self.rounds() if r > rounds)]:
            self.path(old).unlink(missing_ok=True)
