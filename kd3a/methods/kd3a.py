"""KD3A: Knowledge Vote, Consensus Focus and BatchNorm MMD in one round (algorithm 1 of the paper).

``variant: paper`` does what the paper says, ``variant: official`` what the authors' released code does. Every
difference between the two is a field of :class:`kd3a.methods.kd3a_switches.Config`, so each can be turned alone.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from kd3a import batchnorm
from kd3a.aggregate import aggregate
from kd3a.channel import Message
from kd3a.consensus import Ballots, cast, check, ensemble, focus, vote
from kd3a.domains import Batch, Domain
from kd3a.losses import confidence_gate, distillation, full_precision, mixup
from kd3a.methods.base import Logs, Poll
from kd3a.methods.kd3a_switches import OFFICIAL as OFFICIAL
from kd3a.methods.kd3a_switches import Config
from kd3a.methods.weighted import Weighted
from kd3a.models import Net, contents, parcel, unpack
from kd3a.trainer import Party, Stage
from kd3a.weighting import domain_weights, rule_of, smooth


class KD3A(Weighted):
    """Sources train, teachers vote, a student distils the consensus, the focus weighs, the average is shared."""

    name = "kd3a"
    summary = "knowledge vote, consensus focus and BatchNorm MMD (Feng et al., 2021)"
    Config = Config

    def build(self) -> None:
        super().build()
        self.shared = "" if self.config.shared == "all" else "backbone."
        self.teachers = [self.trainer.net(self.task) for _ in self.task.sources]
        self.voters = self.entitled(list(self.sources))
        self.vote_switches = self.config.model_dump(include={"consensus", "support", "fallback"})

    def entitled(self, names: list[str]) -> dict[str, Net]:
        """The teachers of these sources that may vote: all but the dropped ones."""
        teachers = dict(zip(self.sources, self.teachers, strict=True))
        return {name: teachers[name] for name in self.kept(names)}

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
        teachers = [t for name, t in zip(self.sources, self.teachers, strict=True) if name in uploads]
        for teacher, message in zip(teachers, uploads.values(), strict=True):
            unpack(teacher, contents(message))
        self.voters = self.entitled(list(uploads))
        gate = confidence_gate(stage.progress, self.config.gate_begin, self.config.gate_end)
        loss, ballots, asked = self.distil(stage, gate)  # self.net is now the (K+1)-th model
        check(ballots, list(self.voters), softmax=True)
        alpha = self.weigh(ballots, gate, uploads)
        # in train mode the vote has overwritten the teachers' BatchNorm statistics: average what they hold now
        states = [contents(m) for m in uploads.values()]
        if self.config.teachers == "train":
            states = [contents(parcel(t)) for t in teachers]
        self.average(stage, states, alpha)
        logs = {"loss": loss, "gate": gate, "weights": self.spread(alpha, uploads)}
        if stage.closes_epoch:
            p, n = self.consensus(ballots, gate)
            logs["vote"] = Poll(asked, p.argmax(-1), n > self.config.fallback)
        return logs

    # --- Knowledge Vote -------------------------------------------------------------------------------------------

    def consensus(self, ballots: Ballots, gate: float) -> tuple[Tensor, Tensor]:
        """The labels (N, C) to distil and their weights (N,)."""
        if self.config.ensemble != "vote":
            return ensemble(ballots.q, self.config.ensemble)
        return vote(ballots, gate, **self.vote_switches)

    def distil(self, stage: Stage, gate: float) -> tuple[Tensor, Ballots, Tensor]:
        """Train the student on the consensus; returns its mean loss, the ballots and the samples they are about."""
        if self.config.student_passes == "one" and len(stage) > stage.per_epoch:
            stage = replace(stage, last=stage.first + stage.per_epoch)
        rows = self.trainer.order(self.target.name, len(self.target.part), stage)  # (steps, B)
        if self.config.teachers == "train":
            return *self.distil_online(stage, gate), rows.flatten()
        if self.config.vote_on == "all":
            asked = torch.arange(len(self.target.part), device=rows.device)
        else:
            asked = rows.flatten()
            rows = torch.arange(rows.numel(), device=rows.device).view_as(rows)
        ballots = cast(self.consult(asked), self.config.class_vote)
        p, n = self.consensus(ballots, gate)
        return self.train_student(stage, lambda batch, step: (p[rows[step]], n[rows[step]])), ballots, asked

    def distil_online(self, stage: Stage, gate: float) -> tuple[Tensor, Ballots]:
        """The released code's way: teachers in train mode predict each batch as it comes, dropout and all."""
        seen = []

        @torch.no_grad()
        def agreed(batch: Batch, step: int) -> tuple[Tensor, Tensor]:
            answers = [teacher.train()(batch.x).float().softmax(-1) for teacher in self.voters.values()]
            seen.append(torch.stack(answers, 1))  # (B, K, C)
            with full_precision(batch.x):  # in bfloat16, close votes would be equal
                return self.consensus(cast(seen[-1], self.config.class_vote), gate)

        loss = self.train_student(stage, agreed)
        return loss, cast(torch.cat(seen), self.config.class_vote)

    def consult(self, rows: Tensor) -> Tensor:
        """What the frozen teachers say about these target samples, once a round: (N, K, C)."""
        return torch.stack([self.trainer.predict(t, self.target.part, rows) for t in self.voters.values()], 1)

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

    def weigh(self, ballots: Ballots, gate: float, uploads: dict[str, Message]) -> Tensor:
        """Domain weights of the round, of the sources that were heard and the target."""
        c, q, size_factor = self.config, ballots.q, self.config.size_factor
        if c.weighting != "consensus-focus":  # another rule, which weighs sizes as it likes
            worth, size_factor = rule_of(c.weighting)(self.context(uploads, gate, q)).to(q.device), False
        elif c.focus == "none":
            worth = torch.ones(q.shape[1], device=q.device)
        else:
            worth = focus(ballots, gate, c.focus, c.fallback)
        passed = (ballots.confidence > gate).any(0).float().mean()
        alpha = domain_weights(
            worth,
            torch.stack([message["stats"]["samples"] for message in uploads.values()]).to(q.device),
            len(self.target.part),
            gated_share=passed,
            size_factor=size_factor,
            target_share=c.target_share,
        )
        previous = self.memory.get("alpha")
        if previous is not None and len(alpha) < len(previous):  # the weight of who is missing goes to the others
            previous = previous[self.heard(uploads)]
        alpha = smooth(alpha, previous, c.weight_momentum, c.weight_decimals)
        if len(uploads) < len(self.sources):
            alpha = alpha / alpha.sum()
        self.memory["alpha"] = self.spread(alpha, uploads)
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
        if c.batchnorm_mmd == "loss" and any(name.endswith("running_mean") for name in own):
            self.match_statistics(stage, net, states, alpha)

    def match_statistics(self, stage: Stage, net: Net, states: list[dict[str, Tensor]], alpha: Tensor) -> None:
        """Train the average model on the BatchNorm-MMD loss over the round's target batches."""
        means, variances = batchnorm.stack_statistics(states)
        optimiser = self.trainer.optimiser(net.parameters(), rate=self.config.mmd_rate)
        matcher = Party(f"{self.target.name}/mmd", net, optimiser, self.target.part)

        def loss_of(batch: Batch, step: int) -> Tensor:
            with batchnorm.capture_moments(net) as moments:
                net.forward(batch.x)  # not the compiled call, which would not see the hooks
            return batchnorm.mmd_loss(moments, means, variances, alpha)

        self.trainer.local(matcher, stage, loss_of)
