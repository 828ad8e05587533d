"""The promises every method makes, checked for all that are registered and for the variants of KD3A."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from functools import cache

import pytest
import tiny
import torch
from torch import Tensor

from kd3a.channel import PRIVATE, Channel
from kd3a.domains import Part, Task
from kd3a.errors import UserError
from kd3a.methods import METHODS
from kd3a.methods.base import Logs, Method, Rounds
from kd3a.methods.kd3a import KD3A, OFFICIAL
from kd3a.methods.source_free import SourceFree
from kd3a.settings import Training
from kd3a.traffic import in_words, traffic
from kd3a.trainer import Trainer

every_case = pytest.mark.parametrize("case", tiny.CASES)
home_cases = [case for case, (name, _) in tiny.CASES.items() if issubclass(METHODS[name], Rounds | SourceFree)]


@dataclass
class Trained:
    """A method after its training, the logs of its rounds, and what it says about the target."""

    method: Method
    logs: list[Logs]
    state: dict[str, Tensor]
    predictions: Tensor

    @classmethod
    def on(cls, task: Task, case: str, seed: int = 0, rounds: int | None = None) -> Trained:
        return cls.of(tiny.make(case, task, seed), 0, rounds)

    @classmethod
    def of(cls, method: Method, first: int, last: int | None = None) -> Trained:
        logs = tiny.train(method, first, last)
        return cls(method, logs, tiny.copied(method.state()), method.predict(method.task.target.test))

    def is_same_as(self, other: Trained) -> bool:
        return tiny.same(self.state, other.state) and torch.equal(self.predictions, other.predictions)


@cache
def trained(case: str) -> Trained:
    """The case trained once on the tiny task with seed 0."""
    return Trained.on(tiny.make_task(), case)


@cache
def half_trained(case: str) -> Trained:
    """The same after half of its rounds, which ends the first phase of methods that have two."""
    return Trained.on(tiny.make_task(), case, rounds=len(trained(case).logs) // 2)


@every_case
def test_loss_falls(case):
    """In the first phase; across phases where that is a single round, as they then share their loss."""
    logs = trained(case).logs
    phase = [log for log in logs if log["stage"].phase == logs[0]["stage"].phase]
    first, *_, last = (log["labelled"].item() for log in (phase if len(phase) > 1 else logs))
    assert last < 0.8 * first
    assert all(torch.isfinite(log["loss"]) for log in logs)


@every_case
def test_predictions_are_distributions(case, tiny_task):
    q = trained(case).predictions
    assert q.shape == (len(tiny_task.target.test), 3) and q.dtype == torch.float32
    assert (q >= 0).all()
    torch.testing.assert_close(q.sum(-1), torch.ones(len(q)))


@every_case
def test_weights_are_named_and_sum_to_one(case):
    method = trained(case).method
    for log in trained(case).logs:
        if "weights" in log:
            assert len(log["weights"]) == len(method.weighted)
            assert (log["weights"] >= 0).all() and log["weights"].sum().item() == pytest.approx(1, abs=5e-4)


@every_case
def test_ledger_proves_what_is_declared(case):
    method = trained(case).method
    private = method.channel.kinds() & set(PRIVATE)
    assert private == method.crosses(method.config)
    assert method.needs_source_data or "data" not in private


@every_case
def test_seed_alone_determines_the_bits_and_only_oracle_reads_the_target_labels(case, tiny_task):
    torch.manual_seed(12345)  # the state of the global generator must not matter
    again = Trained.on(tiny.relabelled(tiny_task, "train", "test"), case)
    assert again.is_same_as(trained(case)) is not METHODS[tiny.CASES[case][0]].uses_target_labels


def test_oracle_reads_no_test_labels(tiny_task):
    torch.manual_seed(12345)
    assert Trained.on(tiny.relabelled(tiny_task, "test"), "oracle").is_same_as(trained("oracle"))


def test_oracle_alone_uses_target_labels():
    assert [name for name, method in METHODS.items() if method.uses_target_labels] == ["oracle"]


@every_case
def test_another_seed_differs(case, tiny_task):
    other = Trained.on(tiny_task, case, seed=1, rounds=len(half_trained(case).logs))
    assert not tiny.same(other.state, half_trained(case).state)
    assert not torch.equal(other.predictions, half_trained(case).predictions)


@every_case
def test_a_restored_state_goes_on_as_if_nothing_had_happened(case, tiny_task):
    method, done = tiny.make(case, tiny_task), len(half_trained(case).logs)
    method.load(half_trained(case).state)
    assert torch.equal(method.predict(tiny_task.target.test), half_trained(case).predictions)
    resumed = Trained.of(method, done)
    assert resumed.is_same_as(trained(case))
    assert [log["loss"].item() for log in resumed.logs] == [log["loss"].item() for log in trained(case).logs[done:]]


@pytest.mark.parametrize("rounds", [1.0, 3.0])
@pytest.mark.parametrize("name", METHODS)
def test_traffic_is_what_a_whole_run_sends(name, rounds, tiny_task):
    training = tiny.TRAINING.model_copy(update={"model": "small", "epochs": 4, "rounds_per_epoch": rounds})
    method = METHODS[name](tiny_task, METHODS[name].Config(), Trainer(training, tiny.CPU, 0), Channel("denim"))
    tiny.train(method)
    kinds = sorted(method.channel.kinds())
    sent = traffic(name, tiny_task, training)
    assert sent == pytest.approx({kind: method.channel.bytes(kind=kind) for kind in kinds})
    assert in_words(sent, training.epochs) == "nothing" if name == "oracle" else kinds[0] in in_words(sent, 2)


@pytest.mark.parametrize(("budget", "steps", "batch"), [("network", 6, 8), ("domains", 18, 8), ("joint", 6, 24)])
@pytest.mark.parametrize("mixup", [0.0, 0.2])
def test_budgets_of_source_only(budget, steps, batch, mixup, tiny_task, monkeypatch):
    method = METHODS["source-only"]
    method = method(
        tiny_task, method.Config(budget=budget, mixup=mixup), Trainer(tiny.TRAINING, tiny.CPU, 0), Channel("denim")
    )
    seen, batches = [], Part.batches

    def counted(part, order):
        seen.append(order)
        return batches(part, order)

    monkeypatch.setattr(Part, "batches", counted)
    tiny.train(method)
    order = torch.cat(seen)
    assert order.shape == (steps, batch)
    if budget == "joint":  # every source gives its own third of each batch
        borders = torch.tensor([40, 64])
        assert torch.equal(
            torch.bucketize(order, borders, right=True), torch.arange(3).repeat_interleave(8).expand(6, -1)
        )


@every_case
def test_ledger_survives_json(case, tiny_task):
    whole, fresh = trained(case).method.channel, tiny.make(case, tiny_task).channel
    fresh.load(json.loads(json.dumps(whole.state())))
    assert fresh.ledger == whole.ledger


@pytest.mark.parametrize("case", home_cases)
def test_order_of_sources_does_not_matter_to_a_source(case, tiny_task):
    turned = Trained.on(replace(tiny_task, sources=tiny_task.sources[::-1]), case, rounds=1)
    straight = half_trained(case) if len(half_trained(case).logs) == 1 else Trained.on(tiny_task, case, rounds=1)
    for name in straight.method.sources:
        own = [{k: t for k, t in one.state.items() if k.startswith(f"{name}/")} for one in (straight, turned)]
        assert own[0] and tiny.same(*own)


# --- the switches of KD3A ---------------------------------------------------------------------------------------------

# student_passes needs r < 1
LONG_ROUNDS = Training(model="small", epochs=4, epoch_samples=16, batch_size=8, rounds_per_epoch=0.5)


def switched(task, **config) -> KD3A:
    """KD3A after two rounds of two epochs with these switches."""
    method = tiny.make("kd3a", task, training=LONG_ROUNDS)
    method = KD3A(task, KD3A.Config(**tiny.LOW_GATE, **config), method.trainer, method.channel)
    for log in tiny.train(method):
        assert torch.isfinite(log["loss"]) and torch.isfinite(log["weights"]).all()
    return method


@cache
def as_in_the_paper() -> KD3A:
    return switched(tiny.make_task())


@pytest.mark.parametrize(("name", "value"), OFFICIAL.items())
def test_each_official_switch_runs_alone(name, value, tiny_task):
    assert getattr(KD3A.Config(), name) != value
    method = switched(tiny_task, **{name: value})
    assert all(torch.isfinite(t).all() for t in method.state().values())
    weight = "backbone.1.weight"
    assert not torch.equal(method.net.state_dict()[weight], as_in_the_paper().net.state_dict()[weight])


def test_official_is_the_sum_of_its_switches(tiny_task):
    preset, by_hand = KD3A.Config(variant="official"), KD3A.Config(**OFFICIAL)
    assert preset.model_dump(exclude={"variant"}) == by_hand.model_dump(exclude={"variant"})
    assert tiny.same(switched(tiny_task, variant="official").state(), switched(tiny_task, **OFFICIAL).state())


def test_shapley_is_a_value_of_the_focus_and_no_rule_of_its_own():
    with pytest.raises(UserError, match="weighting: consensus-focus with focus: shapley"):
        KD3A.Config.read({"weighting": "shapley"})


def test_a_switch_wins_over_the_preset():
    assert KD3A.Config(variant="official", mixup=0.0).mixup == 0.0


@pytest.mark.parametrize("values", [{"gate_begin": 1.5}, {"variant": "code"}, {"mixups": 1}, {"mixup": float("nan")}])
def test_wrong_settings_are_one_sentence(values):
    with pytest.raises(UserError, match=next(iter(values))) as caught:
        KD3A.Config.read(values, "method kd3a")
    assert "\n" not in str(caught.value)
