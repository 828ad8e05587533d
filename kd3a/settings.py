"""Settings: what a run is told, checked when it is built. A line under each field says what it means."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeVar, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from kd3a.attacks import Attack
from kd3a.errors import UserError, choose, listing
from kd3a.poison import Poison

S = TypeVar("S", bound="Settings")

#: The sizes of a study.
Scale = Literal["quick", "cpu", "paper"]
SCALES = get_args(Scale)


class Settings(BaseModel):
    """Frozen, no unknown keys, and one sentence for whatever is wrong."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False)

    @classmethod
    def read(cls: type[S], values: Any, where: str = "") -> S:
        """Build from plain values; a mistake becomes a :class:`UserError` of one sentence."""
        try:
            return cls.model_validate(values)
        except ValidationError as error:
            raise UserError(sentence(error, cls, where)) from None


def sentence(error: ValidationError, cls: type[BaseModel], where: str) -> str:
    """The first mistake of a validation error, with the allowed keys or values."""
    first = error.errors()[0]
    prefix = f"{where}: " if where else ""
    key = ".".join(map(str, first["loc"]))
    if first["type"] == "extra_forbidden":
        fields = _at(cls, first["loc"][:-1]).model_fields
        return f"{prefix}unknown key {key!r}; known are {listing(f.alias or n for n, f in fields.items())}."
    if first["type"] == "missing":
        field = _at(cls, first["loc"][:-1]).model_fields[first["loc"][-1]]
        return f"{prefix}key {key!r} is missing; {field.description or 'it is needed'}"
    what = first["msg"].removeprefix("Value error, ").rstrip(".")
    return f"{prefix}{key} = {first['input']!r}: {what}." if key else f"{prefix}{what}."


def _at(cls: type[BaseModel], place: tuple[int | str, ...]) -> type[BaseModel]:
    """The settings class that a place inside ``cls`` belongs to, such as ("methods", 2)."""
    for step in place:
        if isinstance(step, str):
            inner = cls.model_fields[step].annotation
            cls = next((a for a in getattr(inner, "__args__", ()) if hasattr(a, "model_fields")), inner)
    return cls


def _known_model(name: str) -> str:
    from kd3a.models import MODELS  # the networks need PyTorch, settings do not

    choose("model", name, MODELS)
    return name


KnownModel = Annotated[str, AfterValidator(_known_model)]


class Training(Settings):
    """The budget and the optimiser: the same for every method of a study."""

    model: KnownModel = "cnn-narrow"
    """Name of the network; see kd3a.models."""
    epochs: int = Field(20, ge=1)
    """Passes over a domain's epoch_samples."""
    epoch_samples: int = Field(1000, ge=1)
    """Samples of every domain that one epoch visits: a random subset of larger domains, repeats of smaller ones."""
    batch_size: int = Field(50, ge=2)
    """Samples in a mini-batch."""
    rounds_per_epoch: float = Field(1.0, gt=0)
    """r, the communication rounds in an epoch: any value from 1 up, or 1/integer to synchronise every few epochs."""
    lr_begin: float = Field(0.05, gt=0)
    """Learning rate at the start of the cosine decay."""
    lr_end: float = Field(0.001, ge=0)
    """Learning rate at its end."""
    momentum: float = Field(0.9, ge=0, lt=1)
    """Momentum of SGD."""
    weight_decay: float = Field(0.0, ge=0)
    """L2 penalty on all parameters; the paper names none, the released code uses 5e-4."""
    lr_schedule: Literal["run", "released"] = "run"
    """run: cosine over the whole run, the same for every r; released: the code's, which does not scale with r."""
    sampling: Literal["partition", "resample"] = "partition"
    """partition: an epoch is split into its rounds; resample: every round draws anew, as the released code does."""
    sources: int = Field(0, ge=0)
    """K, how many of the sources take part: drawn by the seed, the same and more for a larger K; 0 is all of them."""
    poison: str = ""
    """A bad source, domain:rate:kind, such as street:0.3:fixed (per-batch, random, noise, letters); see kd3a.poison."""
    attack: str = ""
    """A source's attack on its uploads as source:kind:strength, such as street:scaled:10; see kd3a.attacks."""

    @property
    def batches_per_epoch(self) -> int:
        return self.epoch_samples // self.batch_size

    @field_validator("poison", "attack")
    @classmethod
    def _readable(cls, text: str, field: ValidationInfo) -> str:
        (Poison if field.field_name == "poison" else Attack).parse(text)
        return text

    @model_validator(mode="after")
    def _rounds_fit(self) -> Training:
        r, inverse = self.rounds_per_epoch, 1 / self.rounds_per_epoch
        if self.epoch_samples < self.batch_size:
            raise ValueError(f"epoch_samples = {self.epoch_samples} is less than one batch of {self.batch_size}")
        if r > self.batches_per_epoch:
            raise ValueError(
                f"rounds_per_epoch = {r:g} is more than the {self.batches_per_epoch} batches of an epoch; "
                "lower it or raise epoch_samples"
            )
        if r < 1 and abs(inverse - round(inverse)) > 1e-6:
            raise ValueError(f"rounds_per_epoch = {r:g} must be at least 1, or 1/integer such as 0.5 or 0.2")
        if r < 1 and round(inverse) > self.epochs:
            raise ValueError(f"rounds_per_epoch = {r:g} needs at least {round(inverse)} epochs for one round")
        return self


class Hardware(Settings):
    """Where and how a run computes. Written into its provenance, not into its key."""

    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    """auto: CUDA if there is one, then MPS, then the CPU."""
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    """auto: bfloat16 autocast on GPUs that have it, float32 elsewhere."""
    compile: bool = False
    """Compile the networks with torch.compile."""
    channels_last: bool = True
    """Keep image tensors in the memory layout that convolutions like best."""
    threads: int = Field(1, ge=1)
    """CPU threads; two single-thread workers beat one run with two threads."""
