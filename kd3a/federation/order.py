"""What the target tells a source: which run, which stage. Plain JSON, checked when it is read."""

from __future__ import annotations

from typing import Any

from pydantic import Field, ValidationError

from kd3a.errors import UserError
from kd3a.methods import METHODS
from kd3a.runs import Run, make_run
from kd3a.settings import Settings, Training
from kd3a.trainer import Stage


class Order(Settings):
    """One stage of one run, for one source."""

    dataset: str
    """Name of the dataset."""
    target: str
    """Name of the target's domain."""
    sources: tuple[str, ...]
    """Names of all sources, in the task's order."""
    method: str
    """Name of the method."""
    seed: int
    """Seed of everything random."""
    training: Training
    """Budget and optimiser."""
    config: dict[str, Any]
    """The method's own settings."""
    data_sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    """Hash of the dataset that all domains were exported from."""
    key: str = Field(pattern=r"^[0-9a-f]{16}$")
    """Name of the run; a source keeps its state under it."""
    stage: Stage
    """What to train."""

    @property
    def run(self) -> Run:
        return make_run(self.dataset, self.target, self.method, self.seed, self.training, self.config)


def write(run: Run, sources: tuple[str, ...], data_sha256: str, stage: Stage) -> str:
    """The order as text."""
    return Order(
        dataset=run.dataset,
        target=run.target,
        sources=sources,
        method=run.method,
        seed=run.seed,
        training=run.training,
        config=run.config.model_dump(),
        data_sha256=data_sha256,
        key=run.key(data_sha256),
        stage=stage,
    ).model_dump_json()


def read(text: str) -> Order:
    """The order of a text that came from elsewhere."""
    try:
        order = Order.model_validate_json(text)
    except ValidationError as error:
        raise UserError(f"The target's order cannot be read: {error.errors()[0]['msg']}.") from None
    if order.key != order.run.key(order.data_sha256):
        raise UserError("The target's order names a run that its settings do not describe; do both run the same code?")
    return order


def admit(run: Run) -> None:
    """Say why a run cannot have its sources on other machines, if it cannot."""
    method = METHODS[run.method]
    if not method.federated:
        able = ", ".join(name for name, m in METHODS.items() if m.federated)
        raise UserError(f"Method {run.method} does not run on several machines: choose one of {able}.")
    if run.training.sources:
        raise UserError("sources draws some of them, in one process; on several machines, name those that take part.")
    if private := method.crosses(run.config):
        kinds = ", ".join(sorted(private)).replace("_", " ")
        raise UserError(f"These settings would send {kinds} of samples away; choose another rule.")
