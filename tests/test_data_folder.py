"""Image folders: what is read, how it is held, and what is said when something is wrong with it."""

from __future__ import annotations

import ctypes
import os
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from kd3a import data
from kd3a.data import features, streamed
from kd3a.data.folder import Folder
from kd3a.data.images import DOMAINNET, IMAGES, OFFICE
from kd3a.data.resident import stratified
from kd3a.data.streamed import StreamedPart, decode
from kd3a.domains import IMAGENET_MEAN, IMAGENET_STD, Part
from kd3a.errors import UserError
from kd3a.runs import make_run, start
from kd3a.settings import Hardware, Training

REAL = Path(os.environ.get("KD3A_DATA") or Path(__file__).parents[2] / "shared" / "data")
SMALL = Folder("mine", size=16)


def picture(path: Path, seed: int, mode: str = "RGB", size: tuple[int, int] = (24, 18), **options) -> None:
    """A smooth random image in the file's format."""
    rng = np.random.default_rng(seed)
    image = Image.fromarray(rng.integers(0, 256, (4, 4, 3), dtype=np.uint8)).resize(size, Image.Resampling.BICUBIC)
    path.parent.mkdir(parents=True, exist_ok=True)
    image.convert(mode).save(path, **options)


@pytest.fixture
def tree(tmp_path, own_cache, monkeypatch) -> Path:
    """Three domains of two classes, 10 images each, in several formats; the cache is the test's own."""
    monkeypatch.delenv("KD3A_DATA", raising=False)
    monkeypatch.setenv("KD3A_WORKERS", "1")
    root, seed = tmp_path / "images", 0
    for domain in ("art", "photo", "sketch"):
        for name in ("cat", "dog"):
            for i in range(10):
                kind = (("RGB", "jpg"), ("RGB", "png"), ("L", "jpeg"), ("CMYK", "JPG"), ("P", "gif"))[i % 5]
                picture(root / domain / name / f"{i}.{kind[1]}", seed := seed + 1, kind[0])
    (root / "art" / "cat" / ".hidden.jpg").write_bytes(b"")
    (root / "art" / "cat" / "notes.txt").write_text("not an image")
    return root


def damage(path: Path) -> Path:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    return path


# --- reading ----------------------------------------------------------------------------------------------------------


def test_domains_and_classes_come_from_the_folder(tree):
    task = data.load("folder", "photo", tree)
    assert [source.name for source in task.sources] == ["art", "sketch"] and task.target.name == "photo"
    assert task.classes == ("cat", "dog") and task.shape == (3, 224, 224) and task.sizes == [16, 16]
    assert task.target.test.y.bincount().tolist() == [2, 2]
    assert data.DATASETS["folder"].DOMAINS == ()  # without a data folder there are none


def test_domains_are_found_in_kd3a_data(tree, monkeypatch):
    monkeypatch.setenv("KD3A_DATA", str(tree))
    assert data.DATASETS["folder"].DOMAINS == ("art", "photo", "sketch")
    assert data.DATASETS["folder"].CLASSES == ("cat", "dog")
    assert data.load("folder", "art").target.name == "art"


def test_own_data_in_one_line(tree):
    domains, _ = Folder("mine", tree.name, ("art", "sketch"), size=16).load(tree.parent)
    assert tuple(domains) == ("art", "sketch") and domains["art"].train.x.shape == (16, 3, 16, 16)


def test_pixels_are_those_of_the_files(tree):
    part = replace(SMALL, split="all").load(tree)[0]["art"].train
    image = Image.open(tree / "art" / "cat" / "1.png").resize((16, 16), Image.Resampling.BILINEAR)
    assert torch.equal(part.x[1], torch.from_numpy(np.array(image)).permute(2, 0, 1))
    assert part.y.tolist() == [0] * 10 + [1] * 10


def test_other_colour_models_become_rgb(tmp_path):
    for mode, name in (("L", "grey.png"), ("CMYK", "ink.tiff"), ("P", "palette.png"), ("1", "bits.png")):
        picture(tmp_path / name, 1, mode)
        expected = Image.open(tmp_path / name).convert("RGB").resize((12, 12), Image.Resampling.BILINEAR)
        assert np.array_equal(decode(tmp_path / name, 12), np.asarray(expected).transpose(2, 0, 1))
    Image.new("RGBA", (8, 8), (200, 0, 0, 0)).save(tmp_path / "clear.png")
    assert (decode(tmp_path / "clear.png", 4) == 255).all()
    Image.new("CMYK", (16, 16), (0, 255, 255, 0)).save(tmp_path / "red.jpg", quality=95)
    red, green, blue = decode(tmp_path / "red.jpg", 4).reshape(3, -1).mean(1)
    assert red > 220 and green < 40 and blue < 40


def test_hash_sees_content_names_and_settings(tree):
    sha256 = SMALL.load(tree)[1]
    assert SMALL.load(tree)[1] == sha256
    others = {replace(SMALL, size=20).load(tree)[1], replace(SMALL, split="all").load(tree)[1]}
    others |= {replace(SMALL, normalise=False).load(tree)[1], replace(SMALL, keep="streamed").load(tree)[1]}
    (tree / "art" / "cat" / "0.jpg").rename(tree / "art" / "cat" / "00.jpg")
    others.add(SMALL.load(tree)[1])
    picture(tree / "art" / "cat" / "00.jpg", 99)
    others.add(SMALL.load(tree)[1])
    assert len(others) == 6 and sha256 not in others


def test_pixels_are_cached_and_resumed(tree, own_cache, monkeypatch):
    first, _ = SMALL.load(tree)
    caches = sorted(own_cache.glob("images-*.safetensors"))
    assert len(caches) == 3
    caches[1].write_bytes(caches[1].read_bytes()[:1000])  # as a crash in the second domain could not even leave it
    read, calls = StreamedPart.read, []
    monkeypatch.setattr(StreamedPart, "read", lambda self, *args: calls.append(self) or read(self, *args))
    second, _ = SMALL.load(tree)
    assert len(calls) == 1  # the damaged one only
    assert all(torch.equal(first[d].train.x, second[d].train.x) for d in first)


def test_large_folders_are_streamed(tree, monkeypatch):
    assert type(SMALL.load(tree)[0]["art"].train) is Part
    monkeypatch.setattr("kd3a.data.folder.RESIDENT_BYTES", 60 * 3 * 16 * 16 - 1)
    assert type(SMALL.load(tree)[0]["art"].train) is StreamedPart
    assert type(replace(SMALL, keep="resident").load(tree)[0]["art"].train) is Part


# --- splits -----------------------------------------------------------------------------------------------------------


def test_all_scores_what_it_adapts_to(tree):
    domain = replace(SMALL, split="all").load(tree)[0]["art"]
    assert domain.train is domain.test and len(domain.train) == 20


def test_stratified_parts_are_disjoint_and_complete():
    y = torch.tensor([0] * 50 + [1] * 7 + [2] * 2 + [3])
    train, test = stratified(y)
    assert sorted([*train.tolist(), *test.tolist()]) == list(range(60))
    assert y[test].bincount(minlength=4).tolist() == [10, 1, 1, 0]  # a single image is trained on


def test_released_pipeline_has_no_imagenet_normalisation(tree):
    domain = replace(SMALL, augment=True, normalise=False).load(tree)[0]["art"]
    x = domain.test.inputs(torch.arange(4))
    assert x.min() >= 0 and x.max() <= 1 and domain.train.augment and not domain.test.augment


# --- normalisation ----------------------------------------------------------------------------------------------------


def test_scalars_and_channels_normalise_alike():
    """Bit for bit the formula of the recorded runs on digits."""
    x = torch.arange(256, dtype=torch.uint8).repeat(3).view(1, 3, 16, 16)
    rows = torch.tensor([0])
    scalar = Part(x, rows).inputs(rows)
    assert torch.equal(scalar, x.float().mul_(1 / (255 * 0.5)).sub_(0.5 / 0.5))
    assert torch.equal(scalar, Part(x, rows, (0.5,) * 3, (0.5,) * 3).inputs(rows))


def test_channels_have_their_own_statistics():
    x = torch.randint(256, (5, 3, 4, 4), generator=torch.Generator().manual_seed(0)).to(torch.uint8)
    part = Part(x, torch.zeros(5, dtype=torch.int64), IMAGENET_MEAN, IMAGENET_STD)
    mean, std = (torch.tensor(v, dtype=torch.float64)[:, None, None] for v in (IMAGENET_MEAN, IMAGENET_STD))
    torch.testing.assert_close(part.inputs(torch.arange(5)).double(), (x / 255.0 - mean) / std, atol=1e-5, rtol=0)


# --- streaming --------------------------------------------------------------------------------------------------------


@pytest.fixture
def pair(tree) -> tuple[Part, StreamedPart]:
    """The same images resident and streamed."""
    held, files = (replace(SMALL, split="all", keep=keep).load(tree)[0]["photo"].train for keep in ("auto", "streamed"))
    assert type(held) is Part and type(files) is StreamedPart
    return held, files


@pytest.mark.parametrize("processes", [0, 1, 2])
def test_streamed_equals_resident_in_the_same_order(pair, processes, monkeypatch):
    monkeypatch.setenv("KD3A_WORKERS", str(processes))
    order = torch.stack([torch.randperm(20, generator=torch.Generator().manual_seed(i))[:3] for i in range(15)])
    state = torch.get_rng_state()
    for expected, batch in zip(*(part.batches(order) for part in pair), strict=True):
        assert all(torch.equal(getattr(expected, f), getattr(batch, f)) for f in ("x", "y", "index"))
    assert torch.equal(torch.get_rng_state(), state)  # workers take nothing from the run's random numbers


def test_slow_workers_do_not_change_the_order(pair, monkeypatch):
    """The first batches take longest to read; they still come first."""
    monkeypatch.setenv("KD3A_WORKERS", "2")
    held, files = pair
    read = streamed.Reader.__getitem__

    def slowly(self, rows):
        time.sleep(0.2 / (1 + rows[0]))
        return read(self, rows)

    monkeypatch.setattr(streamed.Reader, "__getitem__", slowly)
    got = [batch.x for batch in files.batches(torch.arange(20).split(2))]
    assert torch.equal(torch.cat(got), held.inputs(torch.arange(20)))


def test_streamed_parts_behave_as_parts(pair):
    held, files = pair
    rows = torch.tensor([7, 3, 19])
    assert torch.equal(files.inputs(rows), held.inputs(rows)) and files.inputs(rows[:0]).shape == (0, 3, 16, 16)
    assert (len(files), files.shape, files.nbytes) == (len(held), held.shape, held.nbytes)
    assert torch.equal(files.to("cpu").inputs(rows), held.inputs(rows))
    some = replace(files, x=files.x[rows], y=files.y[rows])  # a subset, as wrappers make it
    assert torch.equal(some.inputs(torch.arange(3)), held.inputs(rows)) and torch.equal(some.y, held.y[rows])


def test_pools_of_streamed_parts(tree):
    """Names of different lengths pool too."""
    domains = replace(SMALL, split="all", keep="streamed").load(tree)[0]
    pool = StreamedPart.pool([domains[d].train for d in ("art", "sketch", "photo")])
    rows = torch.tensor([5, 25, 45])
    assert len(pool) == 60
    expected = [domains[d].train.inputs(torch.tensor([5])) for d in ("art", "sketch", "photo")]
    assert torch.equal(pool.inputs(rows), torch.cat(expected))


def test_augmentation_is_determined_by_the_batch(pair):
    held, files = pair
    files = replace(files, augment=True)
    order = torch.randperm(20, generator=torch.Generator().manual_seed(0)).view(5, 4)
    once, again = ([batch.x for batch in files.batches(order)] for _ in range(2))
    assert all(map(torch.equal, once, again))
    cut = [batch.x for part in (order[:2], order[2:]) for batch in files.batches(part)]  # as more rounds would cut it
    assert all(map(torch.equal, once, cut))
    other = next(files.batches(order[:1].flip(1))).x.flip(0)
    plain = held.inputs(order[0])
    assert not torch.equal(once[0], other) and not torch.equal(once[0], plain)
    assert (once[0] - plain).abs().mean() < 1.2  # the same pictures, though
    assert torch.equal(files.inputs(order[0]), plain)  # scoring sees them as they are


def test_crops_stay_inside_and_mirror_half():
    rng = np.random.default_rng(0)
    for width, height in ((30, 20), (20, 30), (400, 3), (1, 1)):
        for _ in range(50):
            left, top, right, bottom = streamed.crop(rng, width, height)
            assert 0 <= left < right <= width and 0 <= top < bottom <= height


@pytest.mark.parametrize("method", ["source-only", "kd3a"])
def test_training_does_not_depend_on_how_images_are_held(tree, method):
    """Every weight after a round is the same, bit for bit."""
    states = []
    for keep in ("resident", "streamed"):
        dataset = replace(SMALL, keep=keep).at(tree)
        domains, sha256 = dataset.load(tree)
        sources = tuple(domains[d] for d in ("art", "sketch"))
        task = data.Task("mine", sources, domains["photo"], dataset.classes, sha256)
        training = Training(model="cnn-narrow", epochs=1, epoch_samples=16, batch_size=4)
        run = make_run("mine", "photo", method, 0, training, {})
        built = start(run, task, Hardware(device="cpu"))
        built.run(built.stages()[0])
        states.append(built.state() | {"scores": built.predict(task.target.test)})
        assert built.channel.bytes("up") > 0
    assert states[0].keys() == states[1].keys()
    assert all(torch.equal(states[0][k], states[1][k]) for k in states[0])


def resident_megabytes() -> float:
    """Memory in use: what the allocator merely keeps for later is handed back first."""
    getattr(ctypes.CDLL(None), "malloc_trim", int)(0)
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads the process's memory from /proc")
def test_memory_stays_flat(tmp_path, monkeypatch):
    """Three passes over images whose pixels would take 120 MB leave nothing behind."""
    monkeypatch.setenv("KD3A_WORKERS", "1")
    for i in range(20):
        picture(tmp_path / f"{i}.jpg", i, size=(160, 160))
    part = StreamedPart.of(tmp_path, [f"{i % 20}.jpg" for i in range(400)], [0] * 400, size=160)
    sizes = []
    for epoch in range(3):
        order = torch.randperm(400, generator=torch.Generator().manual_seed(epoch)).view(-1, 20)
        assert sum(len(batch.y) for batch in part.batches(order)) == 400
        sizes.append(resident_megabytes())
    assert sizes[2] - sizes[0] < 15


def test_number_of_workers(monkeypatch):
    monkeypatch.setenv("KD3A_WORKERS", "5")
    assert streamed.workers() == 5
    monkeypatch.setenv("KD3A_WORKERS", "many")
    with pytest.raises(UserError, match="KD3A_WORKERS = 'many'"):
        streamed.workers()
    monkeypatch.delenv("KD3A_WORKERS")
    assert 1 <= streamed.workers() <= 8


# --- bad input --------------------------------------------------------------------------------------------------------


def sentence(dataset, root: Path | None) -> str:
    with pytest.raises(UserError) as caught:
        dataset.load(root)
    text = str(caught.value)
    assert "\n" not in text and text.endswith(".")
    return text


def test_missing_folders(tree):
    assert "KD3A_DATA" in sentence(SMALL, None)
    assert f"There is no folder {tree / 'mine'}: expected mine/<domain>/<class>" in sentence(Folder("m", "mine"), tree)
    assert f"There is no folder {tree / 'clipart'}" in sentence(replace(SMALL, domains=("art", "clipart")), tree)
    assert "holds no class folder" in sentence(SMALL, tree / "art")
    assert "holds no folder" in sentence(SMALL, tree / "art" / "cat")
    assert "holds 2 class folders, expected 10" in sentence(replace(SMALL, count=10), tree)
    for name in ("office-caltech10", "pacs", "domainnet", "domainnet126", "folder"):
        assert "Not found" in IMAGES[name].available(None)


def test_class_folders_that_differ(tree):
    picture(tree / "photo" / "horse" / "0.jpg", 0)
    text = sentence(SMALL, tree)
    assert f"{tree / 'art'} has no class folder 'horse', which photo has" in text
    (tree / "photo" / "horse" / "0.jpg").unlink()
    (tree / "photo" / "horse").rmdir()
    (tree / "sketch" / "dog").rename(tree / "sketch" / ".dog")
    assert f"{tree / 'sketch'} has no class folder 'dog', which art has" in sentence(SMALL, tree)


def test_empty_class(tree):
    for file in (tree / "sketch" / "dog").iterdir():
        file.unlink()
    assert f"Class folder {tree / 'sketch' / 'dog'} holds no image" in sentence(SMALL, tree)


@pytest.mark.parametrize("what", ["cut", "empty", "text"])
def test_damaged_image_is_named(tree, what):
    path = tree / "photo" / "dog" / "5.jpg"
    content = path.read_bytes()
    path.write_bytes({"cut": content[: len(content) // 2], "empty": b"", "text": b"not an image"}[what])
    text = sentence(SMALL, tree)
    assert text.startswith(f"{path} cannot be read as an image (") and "KD3A_DAMAGED=skip" in text
    assert text.count(str(path)) == 1
    part = replace(SMALL, split="all", keep="streamed").load(tree)[0]["photo"].train
    with pytest.raises(UserError) as caught:
        list(part.batches([torch.tensor([0, 15])]))
    assert str(caught.value) == text  # a worker's error is told in the same sentence
    with pytest.raises(UserError, match="cannot be read"):
        part.inputs(torch.tensor([15]))


@pytest.mark.parametrize("keep", ["resident", "streamed"])
def test_damaged_images_can_be_left_out(tree, keep, monkeypatch):
    dataset = replace(SMALL, split="all", keep=keep)
    plain = dataset.load(tree)[0]
    damage(tree / "photo" / "cat" / "0.jpg"), damage(tree / "photo" / "dog" / "6.png")
    monkeypatch.setenv("KD3A_DAMAGED", "skip")
    for _ in range(2):  # decoded, then cached
        with pytest.warns(UserWarning, match="mine-photo-all: 2 damaged images are left out"):
            domains, sha256 = dataset.load(tree)
        part = domains["photo"].train
        good = torch.tensor([i for i in range(20) if i not in (0, 16)])
        assert torch.equal(part.y, plain["photo"].train.y[good]) and len(domains["art"].train) == 20
        if keep == "resident":
            assert torch.equal(part.x, plain["photo"].train.x[good])
        assert part.inputs(torch.arange(18)).shape == (18, 3, 16, 16)
    monkeypatch.setenv("KD3A_DAMAGED", "stop")
    if keep == "resident":
        assert str(tree / "photo" / "cat" / "0.jpg") in sentence(dataset, tree)
    else:
        assert dataset.load(tree)[1] != sha256
    monkeypatch.setenv("KD3A_DAMAGED", "maybe")
    assert "KD3A_DAMAGED" in sentence(dataset, tree)


# --- lists ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def listed(tree) -> tuple[Folder, Path]:
    """The same images with lists of train and test files; one domain's train list lacks a class."""
    for domain in ("art", "photo", "sketch"):
        names = sorted(p for p in (tree / domain).glob("*/[0-9].*"))
        lines = [f"{p.relative_to(tree).as_posix()} {int(p.parent.name == 'dog')}\n" for p in names]
        train = lines[:7] + (lines[10:17] if domain != "photo" else [])
        (tree / "splits").mkdir(exist_ok=True)
        (tree / "splits" / f"{domain}_train.txt").write_text("".join(train))
        (tree / "splits" / f"{domain}_test.txt").write_text("".join(x for x in lines if x not in train))
    settings = {"split": "lists", "keep": "streamed", "domains": ("art", "photo", "sketch"), "count": 2}
    return replace(SMALL, augment=True, **settings), tree


def test_lists_make_the_parts(listed):
    dataset, root = listed
    domains, _ = dataset.load(root)
    assert dataset.at(root).classes == ("cat", "dog")
    assert [(len(d.train), len(d.test)) for d in domains.values()] == [(14, 6), (7, 13), (14, 6)]
    assert domains["photo"].train.y.unique().tolist() == [0]  # as DomainNet's painting, which lacks class 327
    assert isinstance(domains["art"].train, StreamedPart) and domains["art"].train.augment
    assert not domains["art"].test.augment
    assert next(domains["art"].train.batches(torch.arange(14).view(1, 14))).x.shape == (14, 3, 16, 16)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("art/cat/missing.jpg 0", "There is no file"),
        ("art/cat/0.jpg", "expected '<domain>/<class>/<file> <label>'"),
        ("art/cat/0.jpg one", "expected '<domain>/<class>/<file> <label>'"),
        ("art/cat/0.jpg 1", "label 1 is 'cat' here, but 'dog' before"),
        ("art/cat/0.jpg 7", "name 3 labels from 0 to 7, expected 2 from 0 to 1"),
    ],
)
def test_bad_lines(listed, line, message):
    dataset, root = listed
    path = root / "splits" / "sketch_test.txt"
    path.write_text(f"{path.read_text()}{line}\n")
    text = sentence(dataset, root)
    assert message in text and (str(path) in text or "labels from" in text)


def test_missing_list(listed):
    dataset, root = listed
    (root / "splits" / "photo_test.txt").unlink()
    assert f"There is no file {root / 'splits' / 'photo_test.txt'}" in sentence(dataset, root)


def test_domainnet_is_streamed_from_the_official_lists():
    assert DOMAINNET.count == 345 and len(DOMAINNET.domains) == 6 and DOMAINNET.keep == "streamed"
    assert len(DOMAINNET.CLASSES) == 345 and DOMAINNET.split == "lists"
    assert not DOMAINNET.augment and IMAGES["domainnet-official"].augment  # the paper names mixup alone
    assert IMAGES["domainnet126"].count == 126 and IMAGES["domainnet126"].folder == "domainnet"


# --- features ---------------------------------------------------------------------------------------------------------


class Means(nn.Module):
    """The means of the channels, as a backbone."""

    def forward(self, x):
        return x.mean((2, 3))


@pytest.fixture
def extractions(monkeypatch) -> list[str]:
    """A backbone that needs no weights; the list grows with every part that goes through it."""
    calls: list[str] = []
    monkeypatch.setattr(features.backbones, "backbone", lambda name: (calls.append(name) or Means(), 3))
    monkeypatch.setattr(features.backbones, "weights", lambda name: ({}, "sha of the weights"))
    return calls


def test_features_are_extracted_once(tree, extractions, monkeypatch):
    images = replace(SMALL, split="all")
    dataset = features.Features("mine-features", images)
    domains, sha256 = dataset.load(tree)
    plain = images.load(tree)[0]
    for name, domain in domains.items():
        assert domain.train is domain.test and domain.train.shape == (3,) and domain.train.x.dtype == torch.float32
        expected = plain[name].train.inputs(torch.arange(20)).mean((2, 3))
        torch.testing.assert_close(domain.train.inputs(torch.arange(20)), expected)
        assert torch.equal(domain.train.y, plain[name].train.y)
    assert "3 features of the frozen" in dataset.describe(domains)
    assert dataset.load(tree)[1] == sha256 and len(extractions) == 3
    monkeypatch.setattr(features.backbones, "weights", lambda name: ({}, "other weights"))
    assert dataset.load(tree)[1] != sha256 and len(extractions) == 6
    picture(tree / "art" / "cat" / "0.jpg", 99)
    dataset.load(tree)
    assert len(extractions) == 7  # of the domain that changed


def test_features_follow_the_split(tree, extractions):
    dataset = features.Features("mine-features", SMALL)
    domains, _ = dataset.load(tree)
    assert [(len(d.train), len(d.test)) for d in domains.values()] == [(16, 4)] * 3
    whole = features.Features("mine-features", replace(SMALL, split="all"))
    whole.load(tree)
    assert len(extractions) == 3  # both share the extracted features


# --- the real images --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "counts"),
    [
        ("office-caltech10-96", {"amazon": 958, "caltech": 1123, "dslr": 157, "webcam": 295}),
        ("pacs-96", {"art_painting": 2048, "cartoon": 2344, "photo": 1670, "sketch": 3929}),
    ],
)
def test_real_folders(name, counts):
    dataset = IMAGES[name]
    if not (REAL / dataset.folder).is_dir():
        pytest.skip(f"{dataset.folder} is not in the data folder: set KD3A_DATA")
    plan, sha256, resident = dataset.plan(REAL)
    assert {domain: len(parts["all"][0]) for domain, parts in plan.items()} == counts
    assert resident and len(sha256) == 64 and len(dataset.at(REAL).classes) == dataset.count
    for parts in plan.values():
        part = parts["all"][0]
        assert part.y.bincount().min() >= 8 and len(part.y.unique()) == dataset.count
        assert part.inputs(torch.tensor([0, len(part) - 1])).shape == (2, 3, 96, 96)


def test_real_office_split():
    if not (REAL / OFFICE.folder).is_dir():
        pytest.skip("office-caltech10 is not in the data folder: set KD3A_DATA")
    for parts in OFFICE.plan(REAL)[0].values():
        y = parts["all"][0].y
        train, test = stratified(y)
        assert not set(train.tolist()) & set(test.tolist()) and len(train) + len(test) == len(y)
        assert 0.18 < len(test) / len(y) < 0.22
