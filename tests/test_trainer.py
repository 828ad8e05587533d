"""The engine: timelines, orders, schedules, devices, precision, and a training loop that never waits for the host."""

from __future__ import annotations

import math
import multiprocessing
import sys
from concurrent.futures import ProcessPoolExecutor
from functools import partial, partialmethod

import fake_gpu
import pytest
import tiny
import torch
from torch import nn

from kd3a import models, progress
from kd3a.errors import UserError
from kd3a.losses import confidence_gate, cosine
from kd3a.settings import Hardware, Training
from kd3a.trainer import Trainer, in_sequence, pick_device, pick_precision, timeline

RATES = (0.2, 0.5, 1, 1.5, 2, 3, 10)
EPOCHS, BATCHES = 5, 10
every_rate = pytest.mark.parametrize("r", RATES)


def trainer(seed: int = 0, hardware: Hardware = tiny.CPU, **training) -> Trainer:
    return Trainer(Training(**{"epochs": EPOCHS, "epoch_samples": 40, "batch_size": 4} | training), hardware, seed)


def stages(r: float = 1):
    return timeline(EPOCHS, BATCHES, r)


def orders(t: Trainer, size: int, r: float = 1, name: str = "amber") -> torch.Tensor:
    """All rows a party visits in a whole run, (batches, batch_size)."""
    return torch.cat([t.order(name, size, stage) for stage in stages(r)])


def test_a_step_takes_faded_momentum_as_zero_and_leaves_the_processor_as_it_was():
    """Momentum without gradients fades to numbers below the normal ones, with which many processors are slow."""
    supported = torch.set_flush_denormal(True)
    torch.set_flush_denormal(False)
    weight = torch.nn.Parameter(torch.ones(64))
    optimiser = trainer().optimiser([weight])
    weight.grad = torch.zeros(64)
    optimiser.state[weight]["momentum_buffer"] = torch.full((64,), 1e-37)
    for _ in range(50):
        trainer().step(optimiser)
    assert (optimiser.state[weight]["momentum_buffer"] == 0).all().item() == supported
    assert (torch.full((64,), 1e-37) * 0.01 > 0).all()


# --- timeline ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("epochs", "batches", "r"), [*((EPOCHS, BATCHES, r) for r in RATES), (7, 3, 0.2), (1, 10, 1.01)]
)
def test_stages_partition_the_run(epochs, batches, r):
    plan = timeline(epochs, batches, r)
    Training(epochs=epochs, epoch_samples=50 * batches, batch_size=50, rounds_per_epoch=r)  # settings allow it
    assert [s.round for s in plan] == list(range(math.ceil(epochs * r)))
    assert [b for s in plan for b in range(s.first, s.last)] == list(range(epochs * batches))
    assert all(len(s) > 0 for s in plan)


@every_rate
def test_epochs_are_closed_in_order(r):
    closed = [s.epochs_done for s in stages(r) if s.closes_epoch]
    every = max(1, round(1 / r))
    assert closed == [*range(every, EPOCHS, every), EPOCHS]


@every_rate
def test_learning_rate_depends_on_the_batch_alone(r):
    t = trainer()
    rates = [t.learning_rate(s, step) for s in stages(r) for step in range(len(s))]
    assert rates == pytest.approx([cosine(i / 50, 0.05, 0.001) for i in range(50)])
    assert rates[0] == 0.05 and rates == sorted(rates, reverse=True) and rates[-1] > 0.001


@every_rate
def test_gate_runs_over_all_rounds(r):
    plan = stages(r)
    gates = [confidence_gate(s.progress, 0.9, 0.95) for s in plan]
    assert gates[0] == 0.9 and gates == sorted(set(gates))
    assert gates[-1] == pytest.approx(0.95 - 0.05 * len(plan[-1]) / (EPOCHS * BATCHES))


def test_kd3a_logs_the_gate_of_each_round(tiny_task):
    training = Training(epochs=2, epoch_samples=16, batch_size=8, rounds_per_epoch=2)
    gates = [log["gate"] for log in tiny.train(tiny.make("kd3a", tiny_task, training=training))]
    begin, end = tiny.LOW_GATE.values()
    assert gates == pytest.approx([begin + (end - begin) * i / 4 for i in range(4)])


def test_phases_are_numbered_on_and_start_anew():
    plan = in_sequence(timeline(2, 5, 2), timeline(1, 5, phase="adapt"))
    assert [s.round for s in plan] == [0, 1, 2, 3, 4]
    assert plan[-1].progress == 0 and plan[-1].phase == "adapt" and plan[-1].epochs_done == 3


def test_released_schedule_is_constant_in_a_round_and_one_round_late():
    t = trainer(lr_schedule="released", rounds_per_epoch=2)
    rates = [{t.learning_rate(s, step) for step in range(len(s))} for s in stages(2)]
    assert all(len(rate) == 1 for rate in rates)
    expected = [cosine(max(0, i - 1) / EPOCHS, 0.05, 0.001) for i in range(10)]  # its period is EPOCHS rounds, not 10
    assert [rate.pop() for rate in rates] == pytest.approx(expected)
    assert expected[6] == 0.001 and expected[7] > expected[6]


def test_schedule_scales_each_group():
    t = trainer()
    optimiser = t.optimiser([nn.Parameter(torch.zeros(1))], rate=0.1)
    t.schedule(optimiser, stages()[1], 3)
    assert optimiser.param_groups[0]["lr"] == pytest.approx(0.1 * cosine(13 / 50, 0.05, 0.001))


# --- which samples are visited ----------------------------------------------------------------------------------------


def test_an_epoch_visits_every_sample_once():
    for epoch in orders(trainer(), 40).split(BATCHES):
        assert epoch.shape == (BATCHES, 4)
        assert sorted(epoch.flatten().tolist()) == list(range(40))


def test_a_small_domain_is_repeated_in_fresh_orders():
    first = orders(trainer(), 12)[:BATCHES].flatten()
    passes = first.split(12)
    assert all(sorted(p.tolist()) == list(range(12)) for p in passes[:3])
    assert not torch.equal(passes[0], passes[1]) and len(set(passes[3].tolist())) == 4


def test_a_large_domain_gives_a_subset_that_changes():
    epochs = [set(epoch.flatten().tolist()) for epoch in orders(trainer(), 100).split(BATCHES)]
    assert all(len(epoch) == 40 for epoch in epochs)
    assert len(set.union(*epochs)) > 80


@every_rate
@pytest.mark.parametrize("size", [12, 40, 100])
def test_order_is_the_same_for_every_r(size, r):
    assert torch.equal(orders(trainer(), size, r), orders(trainer(), size))


def test_order_depends_on_seed_party_and_epoch():
    base = orders(trainer(), 40)
    assert torch.equal(orders(trainer(), 40), base)
    assert not torch.equal(orders(trainer(seed=1), 40), base)
    assert not torch.equal(orders(trainer(), 40, name="beige"), base)
    assert not torch.equal(base[:BATCHES], base[BATCHES : 2 * BATCHES])


@every_rate
def test_resampling_draws_anew_in_every_round(r):
    t = trainer(sampling="resample")
    drawn = [t.order("amber", 40, stage) for stage in stages(r)]
    assert [len(rows) for rows in drawn] == [len(stage) for stage in stages(r)]
    for rows in drawn:  # without repeats up to a whole epoch
        assert all(len(set(piece.flatten().tolist())) == piece.numel() for piece in rows.split(BATCHES))
    if r > 1:
        first_epoch = torch.cat(drawn)[:BATCHES].flatten().tolist()
        assert len(set(first_epoch)) < 40  # the rounds of an epoch overlap
    assert not torch.equal(torch.cat(drawn), orders(trainer(), 40))


def test_batches_of_several_parties_go_in_step(tiny_task):
    t = trainer()
    parts = {domain.name: domain.train for domain in (*tiny_task.sources, tiny_task.target)}
    seen = list(t.batches(stages(2)[1], parts))
    assert len(seen) == 5 and all(list(row) == list(parts) for row in seen)
    for name, part in parts.items():
        rows = t.order(name, len(part), stages(2)[1])
        assert torch.equal(torch.stack([row[name].index for row in seen]), rows)
        assert torch.equal(seen[2][name].y, part.y[rows[2]]) and torch.equal(seen[2][name].x, part.inputs(rows[2]))


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"rounds_per_epoch": 0.7}, "1/integer"),
        ({"rounds_per_epoch": 11}, "10 batches"),
        ({"rounds_per_epoch": 0.1}, "at least 10 epochs"),
        ({"epoch_samples": 3}, "less than one batch"),
        ({"batch_size": 1}, "batch_size"),
    ],
)
def test_impossible_budgets_are_one_sentence(values, words):
    with pytest.raises(UserError, match=words) as caught:
        Training.read({"epochs": EPOCHS, "epoch_samples": 40, "batch_size": 4} | values)
    assert "\n" not in str(caught.value)


# --- devices and precision --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "check"), [("cuda", "torch.cuda"), ("mps", "torch.backends.mps")])
def test_an_absent_device_is_an_error(monkeypatch, name, check):
    monkeypatch.setattr(f"{check}.is_available", lambda: False)
    with pytest.raises(UserError, match=f"Device {name} is not available"):
        pick_device(name)


@pytest.mark.parametrize(("cuda", "mps", "chosen"), [(1, 1, "cuda"), (0, 1, "mps"), (0, 0, "cpu")])
def test_auto_takes_the_best_device(monkeypatch, cuda, mps, chosen):
    monkeypatch.setattr("torch.cuda.is_available", lambda: bool(cuda))
    monkeypatch.setattr("torch.backends.mps.is_available", lambda: bool(mps))
    assert pick_device("auto").type == chosen and pick_device("cpu").type == "cpu"


def test_auto_precision_on_the_cpu_is_exact():
    assert pick_precision("auto", torch.device("cpu")) == torch.float32
    assert pick_precision("bfloat16", torch.device("cpu")) == torch.bfloat16


@pytest.mark.parametrize("case", ["oracle", "kd3a"])
def test_bfloat16_trains_and_stays_finite(case, tiny_task):
    exact, rough = (
        tiny.make(case, tiny_task, hardware=Hardware(device="cpu", precision=precision))
        for precision in ("float32", "bfloat16")
    )
    losses = [log["labelled"].item() for log in tiny.train(rough)]
    assert losses[-1] < 0.8 * losses[0]
    assert all(torch.isfinite(t).all() and t.dtype != torch.bfloat16 for t in rough.state().values())
    tiny.train(exact)
    assert not tiny.same(exact.state(), rough.state())
    q = rough.predict(tiny_task.target.test)
    assert q.dtype == torch.float32
    torch.testing.assert_close(q.sum(-1), torch.ones(len(q)))


def test_memory_layout_changes_speed_only(tiny_task):
    plain = Hardware(device="cpu", channels_last=False)
    losses = [tiny.train(tiny.make("fedavg", tiny_task, hardware=hardware)) for hardware in (tiny.CPU, plain)]
    for one, other in zip(*losses, strict=True):
        torch.testing.assert_close(one["loss"], other["loss"], rtol=1e-3, atol=1e-4)


def test_predict_leaves_the_network_as_it_was(tiny_task):
    method = tiny.make("oracle", tiny_task)
    part, before = tiny_task.target.train, tiny.copied(method.state())
    for training in (True, False):
        method.net.train(training)
        whole = method.predict(part)
        assert method.net.training is training
    assert tiny.same(before, method.state())
    rows = torch.tensor([5, 0, 5])
    torch.testing.assert_close(method.trainer.predict(method.net, part, rows), whole[rows])


# --- compiled networks ------------------------------------------------------------------------------------------------


@pytest.fixture
def certain_model(monkeypatch):
    """The small network without dropout, as a compiler may draw other random numbers."""
    monkeypatch.setitem(models.MODELS, "small", partial(tiny.small, dropout=0.0))


def losses_of(case: str, task, compiled: bool) -> torch.Tensor:
    training = Training(model="small", epochs=2, epoch_samples=16, batch_size=8)
    method = tiny.make(case, task, training=training, hardware=Hardware(device="cpu", compile=compiled))
    return torch.stack([log["loss"] for log in tiny.train(method)])


@pytest.mark.filterwarnings("ignore:.*script_method:DeprecationWarning")
def test_compiled_network_gives_about_the_same(tiny_task, certain_model, monkeypatch):
    """With the real compiler, gcc and all; on a network of two layers to keep it short."""
    monkeypatch.setattr("torch._inductor.config.compile_threads", 1)
    torch._dynamo.reset()
    graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    compiled = losses_of("oracle", tiny_task, True)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] > graphs
    torch.testing.assert_close(compiled, losses_of("oracle", tiny_task, False), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("case", ["kd3a", "kd3a official", "kd3a mmd loss"])
def test_every_way_through_a_network_can_be_compiled(case, tiny_task, certain_model, monkeypatch):
    """Traced as by the compiler, but run without generating code."""
    monkeypatch.setattr(nn.Module, "compile", partialmethod(nn.Module.compile, backend="eager"))
    torch._dynamo.reset()
    compiled, eager = (losses_of(case, tiny_task, compiled) for compiled in (True, False))
    torch.testing.assert_close(compiled, eager, rtol=1e-3, atol=1e-4)


# --- the hot loop on a GPU --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def gpu():
    """A process with a pretended GPU."""
    context = multiprocessing.get_context("forkserver")
    with ProcessPoolExecutor(1, context, initializer=fake_gpu.set_up) as pool:
        yield lambda case: pool.submit(fake_gpu.try_out, case).result(120)


@pytest.mark.parametrize("case", tiny.CASES)
def test_no_step_waits_for_the_host(case, gpu):
    error, copies = gpu(case)
    assert not error
    assert copies == 0  # what the device needs is there before the loop begins


@pytest.mark.parametrize("mistake", fake_gpu.MISTAKES)
def test_the_pretended_gpu_notices(mistake, gpu):
    error, copies = gpu(mistake)
    assert (copies > 0) if mistake == "copy in every step" else error


@pytest.mark.parametrize("kernel", [True, False])
def test_a_bar_is_drawn_in_notebooks_without_widgets_and_nowhere_without_a_terminal(kernel, monkeypatch, capsys):
    monkeypatch.delenv("KD3A_PROGRESS", raising=False)
    monkeypatch.setitem(sys.modules, "ipykernel", sys) if kernel else monkeypatch.delitem(
        sys.modules, "ipykernel", False
    )
    monkeypatch.setattr(progress, "find_spec", lambda name: None)
    with progress.Progress("digits", total=2) as bar:
        bar.advance({"target_accuracy": 0.5, "gate": None, "weights": {"mnist": 0.25}})
    assert ("digits" in capsys.readouterr().err) is kernel
