"""FedProx: FedAvg whose sources are held back, so that models that trained in different houses stay close together."""

from __future__ import annotations

from pydantic import Field
from torch import Tensor

from kd3a.channel import Message
from kd3a.domains import Batch
from kd3a.methods.weighted import Weighted
from kd3a.settings import Settings
from kd3a.trainer import Party, Stage
from kd3a.weighting import RuleName


class FedProx(Weighted):
    r"""A source minimises its loss plus :math:`\frac{\mu}{2} \|\Theta_k - \Theta\|^2` (Li et al., 2020).

    :math:`\Theta` is the shared model that the source received; :math:`\mu = 0` is FedAvg.
    """

    name = "fedprox"
    summary = "FedAvg with a pull of every source towards the shared model (Li et al., 2020)"

    class Config(Settings):
        """Settings of FedProx."""

        proximal: float = Field(0.01, ge=0)
        """mu, the strength of the pull."""
        weighting: RuleName = "size"
        """How sources are weighed: size, uniform, drop:names, consensus-focus, shapley, h-divergence or info-gain."""

    def local(self, party: Party, stage: Stage, received: Message) -> Message:
        self.receive(party, received)
        shared = received["params"]

        def loss_of(batch: Batch, step: int) -> Tensor:
            distance = sum((p - shared[n]).square().sum() for n, p in party.net.named_parameters())
            return self.label_loss(party.net(batch.x), batch.y) + self.config.proximal / 2 * distance

        self.losses[party.name] = self.trainer.local(party, stage, loss_of)
        return self.report(party)
