"""The built-in digits: what they are, that they are the same every time, and that the cache can be trusted."""

from __future__ import annotations

import time
import warnings

import numpy as np
import pytest
import torch

from kd3a.data import digits
from kd3a.data.files import digest, domain


@pytest.fixture(scope="module")
def built():
    """All arrays, built once for this file, and the seconds it took."""
    start = time.process_time()
    arrays = digits.build()
    return arrays, time.process_time() - start


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """An empty cache folder that does not exist yet."""
    monkeypatch.setenv("KD3A_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def builds(built, monkeypatch):
    """Let ``load`` take the arrays already built, and count how often it asks for them."""
    calls = []
    monkeypatch.setattr(digits, "build", lambda: calls.append(1) or built[0])
    return calls


def images(x: np.ndarray) -> set[bytes]:
    return {image.tobytes() for image in x}


def equal(domains, arrays) -> bool:
    return all(
        torch.equal(getattr(getattr(domains[d], part), a), torch.from_numpy(arrays[d][f"{a}_{part}"]))
        for d in digits.DOMAINS
        for part in ("train", "test")
        for a in "xy"
    )


@pytest.mark.parametrize("name", digits.DOMAINS)
def test_shapes_and_balance(built, name):
    arrays = built[0][name]
    sizes = {"train": 1437, "test": 360} if name == "optdigits" else {"train": 2000, "test": 500}
    for part, size in sizes.items():
        x, y = arrays[f"x_{part}"], arrays[f"y_{part}"]
        assert x.shape == (size, 3, 32, 32) and x.dtype == np.uint8 and x.flags.c_contiguous
        assert y.shape == (size,) and y.dtype == np.int64
        counts = np.bincount(y, minlength=10)
        slack = 0.05 * size / 10 if name == "optdigits" else 0  # optdigits is not balanced at its origin
        assert len(counts) == 10 and np.abs(counts - size / 10).max() <= slack


@pytest.mark.parametrize("name", digits.DOMAINS)
def test_no_image_twice(built, name):
    arrays = built[0][name]
    train, test = images(arrays["x_train"]), images(arrays["x_test"])
    assert len(train) == len(arrays["x_train"]) and len(test) == len(arrays["x_test"])
    assert not train & test


def test_mnist_and_mnist_m_share_no_digit(monkeypatch):
    """With the blending switched off, both halves together are all 5,000 digits, each once."""
    monkeypatch.setattr(digits, "blend", lambda x, rng: x)
    plain, other = ([images(half[f"x_{part}"]) for part in ("train", "test")] for half in digits.mnist_pair())
    assert len(set.union(*plain, *other)) == 5000


def test_blend_is_the_absolute_difference_to_a_patch():
    black = np.zeros((3, 3, 32, 32), np.uint8)
    patches = digits.blend(black, digits.stream("mnist_m"))
    assert np.array_equal(digits.blend(black + 255, digits.stream("mnist_m")), 255 - patches)
    assert len(images(patches)) == 3


def test_hash_is_the_pinned_one(built):
    assert digest({name: domain(name, arrays) for name, arrays in built[0].items()}) == digits.SHA256


def test_same_bytes_every_time(built):
    for name, again in {"optdigits": digits.optdigits(), "synth": digits.rendered("synth", digits.synth_image)}.items():
        assert all(np.array_equal(built[0][name][a], again[a]) for a in digits.ARRAYS)


def test_build_is_quick(built):
    assert built[1] < 20


def test_cached_load_equals_build(built, cache, builds):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        first, sha256 = digits.load()
        second, again = digits.load()
    assert len(builds) == 1 and sha256 == again == digits.SHA256
    assert tuple(second) == digits.DOMAINS and equal(first, built[0]) and equal(second, built[0])
    assert [file.name for file in cache.iterdir()] == [digits.cache_path().name]


@pytest.mark.parametrize("damage", ["cut", "flipped", "empty", "text"])
def test_damaged_cache_is_rebuilt(built, cache, builds, damage):
    digits.load()
    path = digits.cache_path()
    raw = bytearray(path.read_bytes())
    raw[-1000] ^= 1
    path.write_bytes({"cut": raw[: len(raw) // 2], "flipped": raw, "empty": b"", "text": b"not a cache" * 9}[damage])
    domains, sha256 = digits.load()
    assert len(builds) == 2 and sha256 == digits.SHA256 and equal(domains, built[0])
    digits.load()
    assert len(builds) == 2


def test_other_hash_is_used_with_a_warning(cache, builds, monkeypatch):
    actual, pinned = digits.SHA256, "f" * 64
    monkeypatch.setattr(digits, "SHA256", pinned)
    for _ in range(2):
        with pytest.warns(UserWarning, match=f"{actual[:12]} instead of {pinned[:12]}") as caught:
            assert digits.load()[1] == actual
        assert len(caught) == 1
    assert len(builds) == 1  # the cache of these libraries is kept
    monkeypatch.setattr(digits, "version", lambda name: "0")
    with pytest.warns(UserWarning):
        digits.load()
    assert len(builds) == 2  # that of other libraries is not


def test_cache_that_cannot_be_written_is_no_obstacle(built, tmp_path, builds, monkeypatch):
    file = tmp_path / "file"
    file.write_text("in the way")
    monkeypatch.setenv("KD3A_CACHE", str(file))
    with pytest.warns(UserWarning, match="could not be cached"):
        domains, sha256 = digits.load()
    assert sha256 == digits.SHA256 and equal(domains, built[0])


def test_available():
    assert "nothing to download" in digits.available(None)
