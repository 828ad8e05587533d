"""Amazon Review: MDAN's layout read into sparse parts, bad files named, and KD3A on sparse data."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tiny
import torch
from test_data_files import REAL, needs, sentence

from kd3a import cli, data
from kd3a.channel import Channel
from kd3a.data import amazon
from kd3a.domains import Domain, SparsePart, Task
from kd3a.errors import UserError
from kd3a.methods import METHODS
from kd3a.models import SparseLinear, build
from kd3a.settings import Training
from kd3a.trainer import Trainer

SIZES = (30, 25, 40, 35)


@pytest.fixture
def small(monkeypatch):
    """Domains of a few reviews and 50 features; a file of 60 features, so that the last ten have to be left out."""
    monkeypatch.setattr(amazon, "TRAIN", 20)
    monkeypatch.setattr(amazon, "FEATURES", 50)


def dense(seed: int = 0) -> np.ndarray:
    """Reviews × 60 features, mostly zeros; one review is empty."""
    rng = np.random.default_rng(seed)
    x = rng.integers(1, 9, (sum(SIZES), 60)) * (rng.random((sum(SIZES), 60)) < 0.1)
    x[3] = 0
    return x.astype(np.float32)


def arrays() -> dict[str, np.ndarray]:
    """What MDAN's file holds: the transposed matrix in coordinates, labels ±1 as a column, borders as a column."""
    row, col = np.nonzero(dense().T)
    return {
        "xx_data": dense().T[row, col],
        "xx_row": row.astype(np.int32),
        "xx_col": col.astype(np.int32),
        "xx_shape": np.array([60, sum(SIZES)]),
        "yy": np.where(np.arange(sum(SIZES)) % 3 == 0, 1.0, -1.0)[:, None],
        "offset": np.cumsum((0, *SIZES))[:, None],
    }


@pytest.fixture
def folder(tmp_path, small) -> Path:
    np.savez(tmp_path / "amazon.npz", **arrays())
    return tmp_path


def rows(part: SparsePart) -> list[tuple]:
    every = torch.arange(len(part))
    return [(*x, y) for x, y in zip(part.inputs(every).tolist(), part.y.tolist(), strict=True)]


def test_every_review_is_read_once(folder):
    domains, _ = amazon.load(folder)
    labels = (arrays()["yy"].ravel() > 0).astype(int)
    start = 0
    for name, size in zip(amazon.DOMAINS, SIZES, strict=True):
        domain = domains[name]
        assert len(domain.train) == 20 and len(domain.test) == size - 20
        assert domain.train.shape == (50,) and domain.train.columns.dtype == torch.int16
        expected = [
            (*x, y) for x, y in zip(dense()[start : start + size, :50], labels[start : start + size], strict=True)
        ]
        assert sorted(rows(domain.train) + rows(domain.test)) == sorted(tuple(map(float, row)) for row in expected)
        start += size


def test_same_split_every_time(folder):
    (one, first), (two, second) = amazon.load(folder), amazon.load(folder)
    assert first == second and torch.equal(one["dvd"].train.x, two["dvd"].train.x)
    tasks = [data.load("amazon", target, folder) for target in ("books", "kitchen")]
    assert tasks[0].sha256 == tasks[1].sha256 == first
    assert tasks[0].sources[0].train is tasks[1].sources[1].train  # dvd, read once


def test_order_of_coordinates_does_not_matter(folder):
    sha256 = amazon.load(folder)[1]
    shuffled = arrays()
    order = np.random.default_rng(1).permutation(len(shuffled["xx_data"]))
    np.savez(folder / "amazon.npz", **shuffled | {k: shuffled[k][order] for k in ("xx_data", "xx_row", "xx_col")})
    assert amazon.load(folder)[1] == sha256


BAD = {
    "label": ("yy", lambda y: np.where(y > 0, 2, y), "label 2"),
    "offset": ("offset", lambda o: o[:-1], "five borders"),
    "few reviews": ("offset", lambda o: np.array([0, 10, 60, 90, 130]), "reviews apart"),
    "shape": ("xx_shape", lambda s: s[::-1], "xx_shape"),
    "rows": ("xx_row", lambda r: r + 60, "do not fit together"),
    "lengths": ("xx_col", lambda c: c[:-1], "do not fit together"),
    "not finite": ("xx_data", lambda d: d * np.nan, "not finite"),
    "objects": ("xx_data", lambda d: d.astype(object), "plain arrays"),
}


@pytest.mark.parametrize("case", BAD)
def test_wrong_content_is_named(folder, case):
    key, change, message = BAD[case]
    np.savez(folder / "amazon.npz", **arrays() | {key: change(arrays()[key])})
    with pytest.raises(UserError, match=message) as caught:
        amazon.load(folder)
    assert "amazon.npz" in sentence(caught)


@pytest.mark.parametrize("key", amazon.KEYS)
def test_missing_key_is_named(folder, key):
    np.savez(folder / "amazon.npz", **{k: v for k, v in arrays().items() if k != key})
    with pytest.raises(UserError, match=f"no array {key}") as caught:
        amazon.load(folder)
    assert "amazon.npz" in sentence(caught)


def test_missing_file_is_named(tmp_path, monkeypatch):
    with pytest.raises(UserError, match="MDAN") as caught:
        amazon.load(tmp_path)
    assert str(tmp_path / "amazon.npz") in sentence(caught)
    assert amazon.available(tmp_path) == str(caught.value)
    monkeypatch.delenv("KD3A_DATA", raising=False)
    assert "KD3A_DATA" in amazon.available(None)


def test_command_line(folder, capsys):
    assert cli.main(["data", "check", "amazon", "--data", str(folder)]) == 0
    out = capsys.readouterr().out
    assert "kitchen      train     20  test     15  50" in out and amazon.load(folder)[1] in out
    assert "negative" in out and "amazon.npz" in out
    assert cli.main(["data", "show", "amazon", "--data", str(folder)]) == 0
    assert "of 50 features on average" in capsys.readouterr().out
    assert cli.main(["data", "prepare", "amazon", "--data", str(folder / "no")]) == 2
    assert "There is no file" in capsys.readouterr().err


# --- sparse parts -------------------------------------------------------------------------------------------------


def test_sparse_part_equals_dense(folder):
    domains, _ = amazon.load(folder)
    part = domains["books"].train
    index = torch.tensor([4, 0, 0, 19])
    whole = part.inputs(torch.arange(20))
    assert torch.equal(part.inputs(index), whole[index]) and whole.dtype == torch.float32
    (batch,) = part.batches([index])
    assert torch.equal(batch.x, whole[index]) and torch.equal(batch.y, part.y[index])
    assert part.nbytes == int((whole != 0).sum()) * (4 + 2) + 20 * 8
    moved = part.to("cpu")
    assert isinstance(moved, SparsePart) and torch.equal(moved.inputs(index), whole[index])


def test_sparse_parts_of_different_length_pool(folder):
    parts = [domain.train for domain in amazon.load(folder)[0].values()]
    parts[0] = replace(parts[0], x=parts[0].x[:, :2], columns=parts[0].columns[:, :2])
    pooled = parts[0].pool(parts)
    assert isinstance(pooled, SparsePart) and len(pooled) == 80
    assert rows(pooled) == [row for part in parts for row in rows(part)]
    assert pooled.nbytes == sum(part.nbytes for part in parts)


def sparse_task() -> Task:
    """Four domains in which a handful of words tell the class."""
    rng = np.random.default_rng(0)

    def part(size: int) -> SparsePart:
        y = torch.arange(size) % 2
        columns = torch.from_numpy(rng.integers(0, 10, (size, 4))) + 20 * y[:, None]
        return SparsePart(x=torch.ones(size, 4), y=y, columns=columns.short(), width=40)

    domains = [Domain(name, part(40), part(30)) for name in amazon.DOMAINS]
    return Task("sparse", tuple(domains[1:]), domains[0], amazon.CLASSES, "0" * 64)


@pytest.mark.parametrize("model", ["mlp", "mlp-bn"])
@pytest.mark.parametrize("name", ["oracle", "source-only", "fedavg", "kd3a"])
def test_methods_train_on_sparse_data(name, model):
    training = Training(model=model, epochs=4, epoch_samples=40, batch_size=10)
    task, method = sparse_task(), METHODS[name]
    run = method(task, method.Config(), Trainer(training, tiny.CPU, 0), Channel("books"))
    logs = tiny.train(run)
    assert all(torch.isfinite(log["loss"]) for log in logs)
    assert (run.predict(task.target.test).argmax(-1) == task.target.test.y).double().mean() > 0.9


def test_mlp_is_the_paper_network():
    net = build("mlp", (5000,), 2, 0)
    count = [sum(p.numel() for p in module.parameters()) for module in (net.backbone, net.head)]
    assert count == [5_551_600, 202] and not list(net.buffers())
    widths = [m.num_features for m in build("mlp-bn", (5000,), 2, 0).modules() if isinstance(m, torch.nn.BatchNorm1d)]
    assert widths == [1000, 500, 100]


def test_sparse_layer_is_a_linear_layer():
    """Same output and gradients as ``nn.Linear``, an empty review included."""
    torch.manual_seed(0)
    layer = SparseLinear(30, 7)
    plain = torch.nn.Linear(30, 7)
    plain.load_state_dict({"weight": layer.weight.T, "bias": layer.bias})
    x = torch.randn(5, 30) * (torch.rand(5, 30) < 0.2)
    x[3] = 0
    for network in (layer, plain):
        network(x).square().sum().backward()
    torch.testing.assert_close(layer(x), plain(x))
    torch.testing.assert_close(layer.weight.grad, plain.weight.grad.T)
    torch.testing.assert_close(layer.bias.grad, plain.bias.grad)


@needs("amazon.npz")
def test_real_file():
    """The counts of MDAN's log, the paper's split, and the first review as it was when this was written."""
    domains, _ = amazon.load(REAL)
    assert [len(d.train) for d in domains.values()] == [2000] * 4
    assert [len(d.test) for d in domains.values()] == [4465, 3586, 5681, 5945]
    positives = [int(d.train.y.sum() + d.test.y.sum()) for d in domains.values()]
    assert positives == [3264, 2807, 3857, 3954]
    first = domains["books"].train.inputs(torch.tensor([0]))
    assert first.shape == (1, 5000)
    assert hashlib.sha256(first.numpy().tobytes()).hexdigest()[:12] == "2804beb9d173"
    assert sum(int((p.x != 0).sum()) for d in domains.values() for p in (d.train, d.test)) == 2_140_430
