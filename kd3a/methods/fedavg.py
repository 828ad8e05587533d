"""FedAvg: KD3A's loop without adaptation. Sources train, the target averages their models by size."""

from __future__ import annotations

from kd3a.methods.base import Supervised
from kd3a.methods.weighted import Weighted
from kd3a.weighting import RuleName


class FedAvg(Weighted):
    r"""The decentralised source-only: :math:`\Theta = \sum_k \frac{N_k}{\sum_j N_j} \Theta_k`."""

    name = "fedavg"
    summary = "average of the sources' models by size: the decentralised lower reference"

    class Config(Supervised):
        """Settings of FedAvg."""

        weighting: RuleName = "size"
        """How sources are weighed: size, uniform, drop:names, consensus-focus, shapley, h-divergence or info-gain."""
