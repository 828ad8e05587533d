"""Digit-5 in its three forms, written as the true files are, and what is said of bad ones."""

from __future__ import annotations

import bz2
import hashlib
import struct
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from scipy.io import savemat
from test_data_files import REAL, needs, sentence

from kd3a import cli, data
from kd3a.data import digit5, digit5_files, digits
from kd3a.errors import UserError
from kd3a.study import shipped

COUNTS = {"train": 24, "test": 12}
ONE_HOT = np.eye(10, dtype=np.uint8)


def y_of(part: str) -> np.ndarray:
    """The digits of a part: all ten, in an order of their own."""
    return np.random.default_rng(COUNTS[part]).permutation(COUNTS[part]) % 10


def x_of(part: str, *shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (COUNTS[part], *shape), dtype=np.uint8)


def matlab(x: np.ndarray, y: np.ndarray) -> dict[str, np.ndarray]:
    """SVHN's and SYN's form: X as height, width, channel, sample; y as a column from 1 to 10, where 10 means 0."""
    return {"X": x.transpose(1, 2, 3, 0), "y": np.where(y == 0, 10, y).astype(np.uint8)[:, None]}


def write_classic(base: Path, syn: bool = True) -> None:
    base.mkdir(exist_ok=True)
    both = tuple(COUNTS)
    one_hot = {f"label_{part}": ONE_HOT[y_of(part)] for part in both}
    small = {f"{part}_28": x_of(part, 28, 28, 1) for part in both}
    savemat(base / "mnist_data.mat", one_hot | small | {f"{part}_32": x_of(part, 32, 32) for part in both})
    savemat(base / "mnistm_with_label.mat", one_hot | {part: x_of(part, 28, 28, 3, seed=1) for part in both})
    for part in both:
        svhn = matlab(x_of(part, 32, 32, 3, seed=2), y_of(part))
        savemat(base / f"svhn_{part}_32x32.mat", svhn, do_compression=True)
        if syn:
            savemat(base / f"synth_{part}_32x32.mat", matlab(x_of(part, 32, 32, 3, seed=3), y_of(part)))
    cell = np.empty((2, 2), object)
    for i, part in enumerate(both):
        cell[i, 0] = x_of(part, 1, 28, 28, seed=4).astype(np.float64) / 255
        cell[i, 1] = y_of(part)[:, None]
    savemat(base / "usps_28x28.mat", {"dataset": cell})


def write_idx(path: Path, values: np.ndarray) -> None:
    path.write_bytes(struct.pack(f">BBBB{values.ndim}I", 0, 0, 8, values.ndim, *values.shape) + values.tobytes())


def write_torchvision(base: Path) -> None:
    for folder in ("MNIST/raw", "SVHN", "USPS"):
        (base / folder).mkdir(parents=True)
    for part, mnist, usps in (("train", "train", "usps.bz2"), ("test", "t10k", "usps.t.bz2")):
        write_idx(base / f"MNIST/raw/{mnist}-images-idx3-ubyte", x_of(part, 28, 28))
        write_idx(base / f"MNIST/raw/{mnist}-labels-idx1-ubyte", y_of(part).astype(np.uint8))
        savemat(base / f"SVHN/{part}_32x32.mat", matlab(x_of(part, 32, 32, 3, seed=2), y_of(part)))
        grey = x_of(part, 256, seed=4) / 127.5 - 1
        lines = [
            f"{y + 1} " + " ".join(f"{i}:{value:.6f}" for i, value in enumerate(row, 1))
            for row, y in zip(grey, y_of(part), strict=True)
        ]
        (base / "USPS" / usps).write_bytes(bz2.compress("\n".join(lines).encode()))


def write_folder(base: Path) -> None:
    base.mkdir(exist_ok=True)
    for seed, (name, shape) in enumerate(
        {"mt": (28, 28), "mm": (32, 32, 3), "sv": (28, 28, 3), "up": (28, 28)}.items()
    ):
        x = {f"x_{part}": x_of(part, *shape, seed=seed) for part in COUNTS}
        np.savez(base / f"{name}.npz", **x, **{f"y_{part}": y_of(part).astype(np.uint8) for part in COUNTS})


WRITERS = {"classic": write_classic, "torchvision": write_torchvision, "folder": write_folder}


def pillow(x: np.ndarray) -> np.ndarray:
    """(N, side, side[, 3]) as Pillow's bilinear Resize(32) makes it, (N, 3, 32, 32)."""
    grown = [np.asarray(Image.fromarray(i).convert("RGB").resize((32, 32), Image.Resampling.BILINEAR)) for i in x]
    return np.stack(grown).transpose(0, 3, 1, 2)


def close(part, x: np.ndarray, most: int = 1) -> bool:
    """Whether a part holds the images, up to rounding."""
    return part.x.shape == x.shape and np.abs(part.x.numpy().astype(int) - x).max() <= most


@pytest.mark.parametrize("place", ["digit5", "."])
@pytest.mark.parametrize("source", WRITERS)
def test_every_source_gives_every_domain(tmp_path, own_cache, source, place):
    WRITERS[source](tmp_path / place)
    domains, _ = digit5.FOUR.load(tmp_path)
    assert tuple(domains) == digit5.FOUR.DOMAINS == ("mt", "mm", "sv", "up")
    for domain in domains.values():
        for part, split in ((domain.train, "train"), (domain.test, "test")):
            assert part.x.shape == (COUNTS[split], 3, 32, 32) and part.x.dtype == torch.uint8
            assert part.y.dtype == torch.int64 and part.y.tolist() == y_of(split).tolist()
    assert "real domains lie in" in digit5.FOUR.available(tmp_path)


def test_classic_pixels(tmp_path):
    write_classic(tmp_path)
    domains, _ = digit5.FIVE.load(tmp_path)
    assert tuple(domains) == digit5.DOMAINS
    for split in COUNTS:
        part = {name: getattr(domain, split) for name, domain in domains.items()}
        assert close(part["mt"], np.repeat(x_of(split, 1, 32, 32), 3, 1), 0)  # the 32×32 version is taken as it is
        assert close(part["mm"], pillow(x_of(split, 28, 28, 3, seed=1)))
        assert close(part["sv"], x_of(split, 32, 32, 3, seed=2).transpose(0, 3, 1, 2), 0)
        assert close(part["syn"], x_of(split, 32, 32, 3, seed=3).transpose(0, 3, 1, 2), 0)
        assert close(part["up"], pillow(x_of(split, 1, 28, 28, seed=4)[:, 0]))


def test_torchvision_pixels(tmp_path, own_cache, monkeypatch):
    write_torchvision(tmp_path)
    domains, sha256 = digit5.FOUR.load(tmp_path)
    patches = digits.blend(np.zeros((24, 3, 32, 32), np.uint8), digits.stream("mnist_m", 0))
    plain = domains["mt"].train.x.numpy()
    assert close(domains["mt"].test, pillow(x_of("test", 28, 28)))
    assert close(domains["mm"].train, np.abs(patches.astype(int) - plain), 0)  # the MNIST-M recipe
    assert close(domains["sv"].test, x_of("test", 32, 32, 3, seed=2).transpose(0, 3, 1, 2), 0)
    assert close(domains["up"].train, pillow(x_of("train", 16, 16, seed=4)))
    monkeypatch.setattr(digits, "blend", None)  # the second time it comes from the cache
    assert digit5.FOUR.load(tmp_path)[1] == sha256


def test_protocol_limits(tmp_path, own_cache, monkeypatch):
    """Large domains are cut: a fixed draw for training, the first ones for testing; mm gets other digits than mt."""
    write_torchvision(tmp_path / "a")
    write_folder(tmp_path / "b")
    whole = digit5.FOUR.load(tmp_path / "b")[0]["sv"]
    monkeypatch.setattr(digit5, "LIMITS", {"train": 10, "test": 5})
    monkeypatch.setattr(digits, "blend", lambda x, rng: x)
    domains, _ = digit5.FOUR.load(tmp_path / "a")
    assert all((len(d.train), len(d.test)) == (10, 5) for d in domains.values())
    images = [{image.numpy().tobytes() for image in domains[name].train.x} for name in ("mt", "mm")]
    assert len(images[0] | images[1]) == 20
    cut = digit5.FOUR.load(tmp_path / "b")[0]["sv"]
    assert torch.equal(cut.test.x, whole.test.x[:5])
    rows = [next(i for i, x in enumerate(whole.train.x) if torch.equal(x, image)) for image in cut.train.x]
    assert rows == sorted(set(rows)) and torch.equal(cut.train.y, whole.train.y[rows])
    tasks = [data.load("digit5", target, tmp_path / "b") for target in ("mt", "up")]
    assert tasks[0].sha256 == tasks[1].sha256 and tasks[0].sources[-1].name == "up"


@pytest.mark.parametrize("order", ["NHWC", "NCHW", "HWCN", "NHW", "HWN", "flat"])
@pytest.mark.parametrize("side", [28, 32])
def test_axis_orders(order, side):
    x = np.random.default_rng(0).integers(0, 256, (7, side, side, 3), dtype=np.uint8)
    if order in ("NHWC", "NCHW", "HWCN"):
        turned = x.transpose(["NHWC".index(axis) for axis in order])
    else:
        x = x[..., :1]
        turned = {"NHW": x[..., 0], "HWN": x[..., 0].transpose(1, 2, 0), "flat": x.reshape(7, -1)}[order]
    raw = digit5_files.Raw(turned, np.arange(7), "file")
    assert np.array_equal(digit5.images(raw, 7), x.transpose(0, 3, 1, 2))


def test_enlarging_is_that_of_pillow():
    x = np.random.default_rng(0).integers(0, 256, (5, 1, 28, 28), dtype=np.uint8)
    exact = torch.nn.functional.interpolate(torch.from_numpy(x).double(), (32, 32), mode="bilinear").round().numpy()
    assert np.array_equal(digit5.enlarge(x), np.repeat(exact, 3, 1))
    assert np.abs(digit5.enlarge(x).astype(int) - pillow(x[:, 0])).max() <= 1


# --- Synthetic Digits ---------------------------------------------------------------------------------------------


def test_syn_is_rendered_where_the_original_is_missing(tmp_path, own_cache, monkeypatch):
    write_classic(tmp_path, syn=False)
    domains, rendered = digit5.FIVE.load(tmp_path)
    syn = domains["syn"]
    assert (len(syn.train), len(syn.test)) == (24, 12) and syn.train.y.bincount().tolist() == [3] * 4 + [2] * 6
    rng = digits.stream("synth", 0)
    labels = rng.permutation(np.arange(24) % 10)
    assert np.array_equal(syn.train.x[0].permute(1, 2, 0), digits.synth_image(rng, int(labels[0])))
    assert "re-rendered, not the original" in digit5.FIVE.available(tmp_path)
    monkeypatch.setattr(digits, "synth_image", None)  # the second time it comes from the cache
    assert digit5.FIVE.load(tmp_path)[1] == rendered
    write_classic(tmp_path)
    assert "syn is the original" in digit5.FIVE.available(tmp_path)
    assert digit5.FIVE.load(tmp_path)[1] != rendered


def test_origin_of_syn_enters_the_hash(tmp_path, own_cache, monkeypatch):
    write_classic(tmp_path)
    original = digit5.FIVE.load(tmp_path)
    arrays = {f"{a}_{s}": getattr(getattr(original[0]["syn"], s), a).numpy() for a in "xy" for s in COUNTS}
    monkeypatch.setattr(digit5, "find_syn", lambda data: None)
    monkeypatch.setattr(digit5, "rendered", lambda sizes: arrays)
    assert digit5.FIVE.load(tmp_path)[1] != original[1]


# --- bad files ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("source", WRITERS)
def test_each_missing_file_is_named(tmp_path, source):
    WRITERS[source](tmp_path / "digit5")
    for path in sorted(path for path in tmp_path.rglob("*") if path.is_file() and not path.name.startswith("synth")):
        kept = path.read_bytes()
        path.unlink()
        with pytest.raises(UserError, match="There is no file") as caught:
            digit5.FOUR.load(tmp_path)
        assert str(path) in sentence(caught) and digit5.FOUR.available(tmp_path) == str(caught.value)
        path.write_bytes(kept)


@pytest.mark.parametrize("source", WRITERS)
def test_each_truncated_file_is_named(tmp_path, own_cache, source):
    WRITERS[source](tmp_path)
    for path in sorted(path for path in tmp_path.rglob("*") if path.is_file()):
        if own_cache in path.parents:
            continue
        kept = path.read_bytes()
        path.write_bytes(kept[: len(kept) * 2 // 3])
        with pytest.raises(UserError, match="damaged or not") as caught:
            digit5.FIVE.load(tmp_path)
        assert str(path) in sentence(caught)
        path.write_bytes(kept)


def test_nothing_there(tmp_path, monkeypatch):
    with pytest.raises(UserError, match=r"mt\.npz.*kd3a data prepare digit5") as caught:
        digit5.FOUR.load(tmp_path)
    sentence(caught)
    monkeypatch.delenv("KD3A_DATA", raising=False)
    assert "KD3A_DATA" in digit5.FIVE.available(None)


BAD = {
    "wrong key": (lambda a: {"x_trian" if k == "x_train" else k: v for k, v in a.items()}, "no array x_train"),
    "label": (lambda a: a | {"y_test": a["y_test"] + 1}, "label 10"),
    "lengths": (lambda a: a | {"y_test": a["y_test"][:-1]}, "11 labels"),
    "not square": (lambda a: a | {"x_test": a["x_test"][:, 1:]}, "expected grey or RGB"),
    "negative": (lambda a: a | {"x_test": a["x_test"].astype(int) - 1}, "pixels outside"),
    "empty": (lambda a: a | {"x_test": a["x_test"][:0], "y_test": a["y_test"][:0]}, "for 0 labels"),
    "objects": (lambda a: a | {"y_test": a["y_test"].astype(object)}, "plain arrays"),
}


@pytest.mark.parametrize("case", BAD)
def test_wrong_content_is_named(tmp_path, case):
    write_folder(tmp_path)
    change, message = BAD[case]
    np.savez(tmp_path / "up.npz", **change(dict(np.load(tmp_path / "up.npz"))))
    with pytest.raises(UserError, match=message) as caught:
        digit5.FOUR.load(tmp_path)
    assert str(tmp_path / "up.npz") in sentence(caught)


def test_label_of_svhn_out_of_range(tmp_path):
    write_classic(tmp_path)
    savemat(tmp_path / "svhn_test_32x32.mat", matlab(x_of("test", 32, 32, 3), y_of("test") + 2))
    with pytest.raises(UserError, match="label 11") as caught:
        digit5.FOUR.load(tmp_path)
    assert "svhn_test_32x32.mat" in sentence(caught)


# --- the command line ---------------------------------------------------------------------------------------------


def test_check(tmp_path, capsys):
    write_folder(tmp_path)
    assert cli.main(["data", "check", "digit5", "--data", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "one .npz per domain" in out and "sv           train     24  test     12  3×32×32" in out
    assert "0 3  1 3  2 3  3 3  4 2" in out and digit5.FOUR.load(tmp_path)[1] in out


def test_prepare_lists_what_is_expected(tmp_path, capsys, monkeypatch):
    def offline(base, say):
        raise UserError("MNIST could not be downloaded.")

    monkeypatch.setattr(digit5, "download", offline)
    assert cli.main(["data", "prepare", "digit5", "--data", str(tmp_path)]) == 2
    out = capsys.readouterr().out
    files = [name for source in digit5_files.SOURCES for names in source.files.values() for name in names]
    assert all(Path(name).name in out for name in files)


def test_prepare_goes_on_where_it_stopped(tmp_path, own_cache, capsys, monkeypatch):
    """What is complete is not asked for again."""
    asked = []
    monkeypatch.setattr(digit5, "download", lambda base, say: (asked.append(base), write_torchvision(base)))
    for _ in range(2):
        assert cli.main(["data", "prepare", "digit5", "--data", str(tmp_path)]) == 0
    assert asked == [tmp_path / "digit5"] and "torchvision's files" in capsys.readouterr().out


@pytest.mark.parametrize("scale", ["quick", "cpu", "paper"])
@pytest.mark.parametrize("study", ["amazon", "digit5", "digit5-syn"])
def test_params_are_valid(study, scale):
    assert shipped(study, scale).dataset == study


# --- the real files -----------------------------------------------------------------------------------------------

FIRST = {"mt": "67e27dcbfaf0", "mm": "c7129c8eac3b", "sv": "1cd0e8266f0a", "up": "e05c00f5decc"}
TRAIN_HISTOGRAMS = {
    "mt": [504, 610, 483, 493, 542, 473, 473, 488, 475, 459],
    "mm": [493, 561, 453, 499, 469, 450, 513, 554, 509, 499],
    "sv": [344, 900, 733, 581, 522, 469, 375, 384, 360, 332],
    "up": [1053, 910, 639, 596, 585, 490, 583, 573, 489, 582],
}


@needs("digit5/mt.npz")
def test_real_files():
    start = time.process_time()
    domains, _ = digit5.FOUR.load(REAL)
    assert time.process_time() - start < 10
    assert [(len(d.train), len(d.test)) for d in domains.values()] == [(5000, 2000)] * 3 + [(6500, 1200)]
    for name, domain in domains.items():
        assert domain.train.y.bincount().tolist() == TRAIN_HISTOGRAMS[name]
        assert len(domain.test.y.bincount()) == 10
        assert hashlib.sha256(domain.train.x[0].numpy().tobytes()).hexdigest()[:12] == FIRST[name]
