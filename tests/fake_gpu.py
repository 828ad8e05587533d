"""A GPU that computes nothing: it knows shapes and devices, and refuses whatever would stall a real one.

PyTorch's fake tensors follow every operation without doing it. A CPU build of PyTorch cannot index or differentiate
fake *cuda* tensors (it has no device guard for them), so the device here is PyTorch's stand-in for other hardware.
Registering it changes the process for good: run these functions in a process of their own.
"""

from __future__ import annotations

import traceback

import tiny
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode, unset_fake_temporarily
from torch.utils import backend_registration
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from kd3a.channel import Channel
from kd3a.methods import METHODS
from kd3a.methods import kd3a as kd3a_method
from kd3a.methods.oracle import Oracle
from kd3a.settings import Training
from kd3a.trainer import Trainer

NAME = "fakegpu"
COPIES = (torch.ops.aten._to_copy.default, torch.ops.aten.copy_.default)


class Backend(backend_registration._DummyBackendModule):
    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16]


class FakeMode(FakeTensorMode):
    avoid_device_init = True  # constants that move to the device must become fake, too


class Watch(TorchDispatchMode):
    """Lets the host compute for real, counts copies to and from the device, refuses operations on tensors of both.

    Only copies in the steps of a loop count: every loop announces a step when it sets the learning rate. What comes
    before the first may copy what the loop needs, and where the last one ends nobody can tell.
    """

    def __init__(self):
        super().__init__()
        self.pending = self.copies = self.steps = 0

    def begin(self, step: int) -> None:
        if step > 0:
            self.copies += self.pending
            self.steps += 1
        self.pending = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        inputs = [t for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)]
        if {t.device.type for t in inputs} <= {"cpu"} and torch.device(kwargs.get("device") or "cpu").type == "cpu":
            with unset_fake_temporarily():
                return func(*args, **kwargs)
        out = func(*args, **kwargs)
        if func in COPIES:
            self.pending += len({t.device for t in (*inputs, out)}) > 1
        elif len({t.device for t in inputs if t.ndim}) > 1:
            raise RuntimeError(f"{func} mixes tensors of the host and of the device.")
        return out


def set_up() -> None:
    """Register the device; let messages pass without reading their flag of finiteness, which they do by design."""
    backend_registration._setup_privateuseone_for_python_backend(NAME, backend_module=Backend())
    nn.Module.to = move
    Channel.check = kd3a_method.check = lambda *_, **__: None


def move(module: nn.Module, device: torch.device | None = None, memory_format=None) -> nn.Module:
    """``module.to(device)``, which PyTorch cannot do to fake parameters: those elsewhere are replaced."""
    for owner in module.modules() if device is not None else ():
        for name, p in owner.named_parameters(recurse=False):
            if p.device != device:
                setattr(owner, name, nn.Parameter(p.detach().to(device), p.requires_grad))
        for name, b in owner.named_buffers(recurse=False):
            setattr(owner, name, b.to(device))
    return module


#: What must not stand in a training loop: a function of the loss per sample.
MISTAKES = {
    "tensor left on the host": lambda loss: (loss * torch.ones(8)).mean(),
    "index left on the host": lambda loss: loss[torch.arange(8)].mean(),
    "item": lambda loss: loss.mean() / loss.max().item(),
    "tolist": lambda loss: loss.mean() / sum(loss.tolist()),
    "branch": lambda loss: loss.mean() if loss.mean() > 0 else loss.sum(),
    "boolean mask": lambda loss: loss[loss > 0].mean(),
    "copy in every step": lambda loss: (loss * torch.ones(8).to(loss.device)).mean(),
}


class Mistaken(Oracle):
    """Oracle with one of the mistakes in its loss."""

    mistake = ""

    def run(self, stage):
        def loss_of(batch, step):
            return MISTAKES[self.mistake](F.cross_entropy(self.net(batch.x), batch.y, reduction="none"))

        return {"loss": self.trainer.local(self.party, stage, loss_of)}


def try_out(case: str) -> tuple[str, int]:
    """Train a case of :mod:`tiny`, or a mistake, for an epoch of two steps: the error, if any, and copies in steps."""
    name, config = tiny.CASES.get(case, ("", {}))
    method = METHODS.get(name, Mistaken)
    Mistaken.mistake = case
    trainer = Trainer(
        Training(model="small", epochs=1, epoch_samples=16, batch_size=8), tiny.CPU, 0, torch.device(NAME, 0)
    )
    task, watch = tiny.make_task(), Watch()
    trainer.schedule = lambda optimiser, stage, step: watch.begin(step)
    try:
        with FakeMode(allow_non_fake_inputs=True), watch:
            method = method(task.to(trainer.device), method.Config(**config), trainer, Channel(task.target.name))
            for stage in method.stages():
                logs = method.run(stage)
                assert {t.device for t in logs.values() if isinstance(t, Tensor)} == {trainer.device}
            assert {t.device for t in method.net.parameters()} == {trainer.device}
        assert watch.steps > 0, "no step was scheduled"
    except Exception as error:  # most of them cannot be sent to another process
        frames = [f for f in traceback.extract_tb(error.__traceback__) if "/kd3a/" in f.filename]
        return f"{type(error).__name__}: {error}\n{''.join(traceback.format_list(frames[-2:]))}", watch.copies
    return "", watch.copies
