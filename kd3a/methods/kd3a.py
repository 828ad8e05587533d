"""KD3A: Knowledge Vote, Consensus Focus and BatchNorm MMD in one round (algorithm 1 of the paper).

``variant: paper`` does what the paper says, ``variant: official`` what the authors' released code does. Every
difference between the two is a field of :class:`KD3A.Config`, so each can be turned alone.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor

from kd3a import batchnorm
from kd3a.aggregate import aggregate
from kd3a.channel import Message
from kd3a.consensus import consensus_focus, vote
from kd3a.domains import Batch, Domain
from kd3a.losses import confidence_gate, distillation, mixup
from kd3a.methods.base import Logs, Rounds
from kd3a.models import Net, contents, unpack
from kd3a.settings import Settings
from kd3a.trainer import Party, Stage
from kd3a.weighting import domain_weights, smooth

OFFICIAL = {
    "shared": "backbone",
    "consensus": "one-hot",
    "support": "mask",
    "fallback": 0.0,
    "class_vote": "max",
    "focus": "shapley",
    "size_factor": False,
    "target_share": "gated",
    "weight_momentum": 0.9,
    "weight_decimals": 4,
    "vote_on": "stage",
    "teachers": "train",
    "batchnorm_mmd": "plain",
    "mixup": 2.0,
    "mixup_sources": False,
    "mixup_weights": "first",
    "student_passes": "one",
}


class Config(Settings):
    """KD3A's switches. The defaults are the paper; ``variant: official`` presets the released code's values."""

    variant: Literal["paper", "official"] = "paper"
    """Which preset the other fields start from."""
    gate_begin: float = Field(0.9, ge=0, le=1)
    """Confidence gate at the start of training."""
    gate_end: float = Field(0.95, ge=0, le=1)
    """Confidence gate towards the end."""
    shared: Literal["all", "backbone"] = "all"
    """What is averaged and sent back; with backbone, every party keeps a head of its own."""
    consensus: Literal["soft", "one-hot"] = "soft"
    """The distilled label: mean of the supporters' predictions, or the voted class."""
    support: Literal["count", "mask"] = "count"
    """A sample's weight: the number of supporters, or 1."""
    fallback: float = Field(0.001, ge=0)
    """A sample's weight when nobody passes the gate."""
    class_vote: Literal["sum", "max"] = "sum"
    """What confident teachers add up: whole distributions, or only their largest probability."""
    focus: Literal["leave-one-out", "shapley", "none"] = "leave-one-out"
    """How a source's contribution is valued; none weighs sources by size alone."""
    size_factor: bool = True
    """Whether N_k multiplies the contribution."""
    target_share: Literal["size", "gated"] = "size"
    """Weight of the distilled domain: N_T over all samples, or the share that passed the gate over K + 1."""
    weight_momentum: float = Field(0.0, ge=0, lt=1)
    """Moving average of the domain weights over rounds."""
    weight_decimals: int | None = None
    """Round the domain weights to so many decimals (they then need not sum to one exactly)."""
    vote_on: Literal["all", "stage"] = "all"
    """Vote on the whole target, or only on the samples the round visits."""
    teachers: Literal["eval", "train"] = "eval"
    """Teachers predict with their own BatchNorm statistics, or with the target batch's (which overwrite theirs)."""
    batchnorm_mmd: Literal["closed-form", "loss", "plain", "local"] = "closed-form"
    """Second moments; the paper's loss; plain average of variances; or statistics stay at home (BatchNorm MMD off)."""
    mmd_rate: float = Field(0.001, gt=0)
    """Learning rate of the BatchNorm-MMD loss, as a share of the schedule's; used by batchnorm_mmd: loss only."""
    mixup: float = Field(0.2, ge=0)
    """Beta(mixup, mixup) of mixup; 0 turns it off."""
    mixup_sources: bool = True
    """Mixup on the sources' batches too, not only on the target's."""
    mixup_weights: Literal["mixed", "first"] = "mixed"
    """Weight of a mixed sample: each partner's loss with its own n_p, or the first partner's alone."""
    student_passes: Literal["all", "one"] = "all"
    """For r < 1: the student trains on all epochs of the round, or on one."""

    @model_validator(mode="before")
    @classmethod
    def _preset(cls, values: Any) -> Any:
        if isinstance(values, dict) and values.get("variant") == "official":
            return {**OFFICIAL, **values}
        return values


class KD3A(Rounds):
    """Sources train, teachers vote, a student distils the consensus, the focus weighs, the average is shared."""

    name = "kd3a"
    summary = "knowledge vote, consensus focus and BatchNorm MMD (Feng et al., 2021)"
    Config = Config

    def build(self) -> None:
        super().build()
        self.shared = "" if self.config.shared == "all" else "backbone."
        self.teachers = [self.trainer.net(self.task) for _ in self.task.sources]
        self.vote_switches = self.config.model_dump(include={"class_vote", "consensus", "support", "fallback"})

    def source_party(self, source: Domain) -> Party:
        net = self.trainer.net(self.task)
        if self.config.shared == "backbone":  # heads are private from the start
            net.head.load_state_dict(self.trainer.net(self.task, source.name).head.state_dict())
        return self.trainer.party(source.name, net, source.train)

    @property
    def weighted(self) -> list[str]:
        return [*super().weighted, self.task.target.name]

    def broadcast(self) -> Message:
        message = super().broadcast()
        return {"params": message["params"]} if self.config.batchnorm_mmd == "local" else message

    def source_mixup(self) -> float:
        return self.config.mixup if self.config.mixup_sources else 0.0

    def collect(self, stage: Stage, uploads: dict[str, Message]) -> Logs:
        for teacher, message in zip(self.teachers, uploads.values(), strict=True):
            unpack(teacher, contents(message))
        gate = confidence_gate(stage.progress, self.config.gate_begin, self.config.gate_end)
        loss, q = self.distil(stage, gate)  # self.net is now the (K+1)-th model
        alpha = self.weigh(q, gate, [m["stats"]["samples"] for m in uploads.values()])
        # in train mode the vote has overwritten the teachers' BatchNorm statistics: average what they hold now
        states = [contents(m) for m in uploads.values()]
        if self.config.teachers == "train":
            states = [dict(t.named_parameters()) | dict(t.named_buffers()) for t in self.teachers]
        self.average(stage, states, alpha)
        return {"loss": loss, "gate": gate, "weights": alpha}

    # --- Knowledge Vote -------------------------------------------------------------------------------------------

    def distil(self, stage: Stage, gate: float) -> tuple[Tensor, Tensor]:
        """Train the student on the consensus; returns its mean loss and the teachers' predictions q, (N, K, C)."""
        if self.config.student_passes == "one" and len(stage) > stage.per_epoch:
            stage = replace(stage, last=stage.first + stage.per_epoch)
        rows = self.trainer.order(self.target.name, len(self.target.part), stage)  # (steps, B)
        if self.config.teachers == "train":
            return self.distil_online(stage, gate)
        if self.config.vote_on == "all":
            q = self.consult()
        else:
            q = self.consult(rows.flatten())
            rows = torch.arange(rows.numel(), device=rows.device).view_as(rows)
        p, n = vote(q, gate, **self.vote_switches)
        return self.train_student(stage, lambda batch, step: (p[rows[step]], n[rows[step]])), q

    def distil_online(self, stage: Stage, gate: float) -> tuple[Tensor, Tensor]:
        """The released code's way: teachers in train mode predict each batch as it comes, dropout and all."""
        seen = []

        @torch.no_grad()
        def consensus(batch: Batch, step: int) -> tuple[Tensor, Tensor]:
            seen.append(torch.stack([t.train()(batch.x).float().softmax(-1) for t in self.teachers], 1))  # (B, K, C)
            return vote(seen[-1], gate, **self.vote_switches)

        loss = self.train_student(stage, consensus)
        return loss, torch.cat(seen)

    def consult(self, rows: Tensor | None = None) -> Tensor:
        """What the frozen teachers say about the target, once a round: (N, K, C)."""
        return torch.stack([self.trainer.predict(t, self.target.part, rows) for t in self.teachers], 1)

    def train_student(self, stage: Stage, consensus) -> Tensor:
        c, net = self.config, self.target.net
        if c.mixup:
            lam, partner = self.mixing(self.target.name, stage, c.mixup)

        def loss_of(batch: Batch, step: int) -> Tensor:
            p, n = consensus(batch, step)
            if not c.mixup:
                return distillation(net(batch.x), p, n)
            a, pair = lam[step], partner[step]
            logits = net(mixup(batch.x, pair, a))
            if c.mixup_weights == "first":
                return distillation(logits, mixup(p, pair, a), n)
            return a * distillation(logits, p, n) + (1 - a) * distillation(logits, p[pair], n[pair])

        return self.trainer.local(self.target, stage, loss_of)

    # --- Consensus Focus ------------------------------------------------------------------------------------------

    def weigh(self, q: Tensor, gate: float, sizes: list[Tensor]) -> Tensor:
        """Domain weights of the round, (K + 1,)."""
        c = self.config
        if c.focus == "none":
            focus = torch.ones(q.shape[1], device=q.device)
        else:
            focus = consensus_focus(q, gate, c.focus, check=False, class_vote=c.class_vote, fallback=c.fallback)
        passed = (q.amax(-1) > gate).any(1).float().mean()
        alpha = domain_weights(
            focus,
            torch.stack(sizes).to(q.device),
            len(self.target.part),
            gated_share=passed,
            size_factor=c.size_factor,
            target_share=c.target_share,
        )
        alpha = smooth(alpha, self.memory.get("alpha"), c.weight_momentum, c.weight_decimals)
        self.memory["alpha"] = alpha
        return alpha

    # --- aggregation and BatchNorm MMD ----------------------------------------------------------------------------

    def average(self, stage: Stage, states: list[dict[str, Tensor]], alpha: Tensor) -> None:
        """Put the weighted average of the K + 1 models into ``self.net``."""
        c, net = self.config, self.net
        own = {n: t.detach().clone() for n, t in (*net.named_parameters(), *net.named_buffers())}
        states = [*({n: s[n] for n in own if n in s} for s in states), {n: own[n] for n in states[0] if n in own}]
        merged = aggregate(states, alpha, "plain" if c.batchnorm_mmd == "plain" else "closed-form")
        local = () if c.batchnorm_mmd != "local" else tuple(n for n, _ in net.named_buffers())
        unpack(net, {n: t for n, t in merged.items() if n.startswith(self.shared) and n not in local})
        if c.batchnorm_mmd == "loss":
            self.match_statistics(stage, net, states, alpha)

    def match_statistics(self, stage: Stage, net: Net, states: list[dict[str, Tensor]], alpha: Tensor) -> None:
        """Train the average model on the BatchNorm-MMD loss over the round's target batches."""
        means, variances = batchnorm.stack_statistics(states)
        optimiser = self.trainer.optimiser(net.parameters(), rate=self.config.mmd_rate)
        matcher = Party(f"{self.target.name}/mmd", net, optimiser, self.target.part)

        def loss_of(batch: Batch, step: int) -> Tensor:
            with batchnorm.capture_moments(net) as moments:
                net(batch.x)
            return batchnorm.mmd_loss(moments, means, variances, alpha)

        self.trainer.local(matcher, stage, loss_of)
