"""KD3A's switches: every difference between the paper and the released code is one field, to be turned alone."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from kd3a.consensus import VOTE
from kd3a.settings import Settings
from kd3a.weighting import WEIGHTS, RuleName

#: The released code's values: those of the vote, those of the weights, and the rest.
OFFICIAL = {
    **VOTE["official"],
    **WEIGHTS["official"],
    "shared": "backbone",
    "focus": "shapley",
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
    ensemble: Literal["vote", "mean", "max"] = "vote"
    """What the teachers are made one by: Knowledge Vote; or, to compare, their mean or the surest of them, ungated."""
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
    """How consensus focus values a source's contribution; none weighs sources by size alone."""
    weighting: RuleName = "consensus-focus"
    """How sources are weighed: consensus-focus, or size, uniform, drop:names, h-divergence or info-gain."""
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
    """Second moments; the paper's loss; variances averaged; or statistics neither averaged nor sent back (off)."""
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

    @field_validator("weighting")
    @classmethod
    def _once(cls, name: str) -> str:
        if name == "shapley":
            raise ValueError("that rule is weighting: consensus-focus with focus: shapley here")
        return name
