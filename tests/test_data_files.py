"""Where downloaded files lie, what is said of missing and damaged ones, and the hash that names the data."""

from __future__ import annotations

import os
import pickle
import struct
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.io import savemat

from kd3a.data import files
from kd3a.domains import Domain, Part
from kd3a.errors import UserError
from kd3a.records import ROOT

#: The real files, where there are any: tests that look at them say why they are skipped.
REAL = Path(os.environ.get("KD3A_DATA") or ROOT.parent / "shared" / "data")


def needs(file: str):
    return pytest.mark.skipif(not (REAL / file).exists(), reason=f"no {file} in KD3A_DATA or ../shared/data")


def sentence(caught) -> str:
    """The error's text, which has to be one sentence on one line."""
    text = str(caught.value)
    assert text.endswith(".") and "\n" not in text and ". " not in text
    return text


def test_root_is_the_argument_then_the_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("KD3A_DATA", str(tmp_path / "there"))
    assert files.root(tmp_path) == tmp_path
    assert files.root(None) == tmp_path / "there"
    monkeypatch.delenv("KD3A_DATA")
    with pytest.raises(UserError, match="KD3A_DATA") as caught:
        files.root(None)
    sentence(caught)


def test_missing_file_is_named(tmp_path):
    with pytest.raises(UserError, match="some digits") as caught:
        files.need(tmp_path / "x.mat", "some digits", "ask for it")
    assert str(tmp_path / "x.mat") in sentence(caught)
    (tmp_path / "x.mat").touch()
    assert files.need(tmp_path / "x.mat", "", "") == tmp_path / "x.mat"


def test_npz_and_mat_come_back_as_written(tmp_path):
    arrays = {"a": np.arange(6, dtype=np.uint8).reshape(2, 3), "b": np.ones((1, 4))}
    np.savez(tmp_path / "f.npz", **arrays)
    savemat(tmp_path / "f.mat", arrays, do_compression=True)
    for read in (files.read_npz(tmp_path / "f.npz"), files.read_mat(tmp_path / "f.mat")):
        assert read.keys() == arrays.keys()
        assert all(np.array_equal(read[name], arrays[name]) and read[name].dtype == arrays[name].dtype for name in read)
    with pytest.raises(UserError, match="no array c or d; it holds a, b") as caught:
        files.pick(arrays, tmp_path / "f.npz", "c", "d")
    assert "f.npz" in sentence(caught)


@pytest.mark.parametrize("damage", ["cut", "text", "empty", "flipped"])
@pytest.mark.parametrize("kind", ["npz", "mat"])
def test_damaged_file_is_named(tmp_path, kind, damage):
    path = tmp_path / f"f.{kind}"
    noise = np.random.default_rng(0).integers(0, 256, (100, 100), dtype=np.uint8)
    np.savez_compressed(path, x=noise) if kind == "npz" else savemat(path, {"x": noise}, do_compression=True)
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2] ^= 255
    path.write_bytes({"cut": raw[: len(raw) // 2], "text": b"<html>" * 99, "empty": b"", "flipped": raw}[damage])
    with pytest.raises(UserError, match="damaged or not") as caught:
        getattr(files, f"read_{kind}")(path)
    assert str(path) in sentence(caught)


@pytest.mark.parametrize("how", ["object array", "bare pickle"])
def test_nothing_is_unpickled(tmp_path, how):
    class Bomb:
        def __reduce__(self):
            return (pytest.fail, ("a pickle was opened",))

    path = tmp_path / "f.npz"
    if how == "bare pickle":
        path.write_bytes(pickle.dumps(Bomb()))
    else:
        np.savez(path, x=np.array([Bomb()], dtype=object))
    with pytest.raises(UserError, match="plain arrays") as caught:
        files.read_npz(path)
    assert str(path) in sentence(caught)


def test_idx(tmp_path):
    path = tmp_path / "train-images-idx3-ubyte"
    values = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)
    whole = struct.pack(">BBBBIII", 0, 0, 8, 3, 2, 3, 4) + values.tobytes()
    path.write_bytes(whole)
    assert np.array_equal(files.read_idx(path), values)
    for broken in (whole[:-1], whole + b"\0", whole[:7], b"", b"\x1f\x8b" + whole):
        path.write_bytes(broken)
        with pytest.raises(UserError, match="idx file") as caught:
            files.read_idx(path)
        assert str(path) in sentence(caught)


def test_digest_sees_names_types_and_values():
    def domain(name: str, x: torch.Tensor) -> dict[str, Domain]:
        part = Part(x, torch.zeros(4, dtype=torch.int64))
        return {name: Domain(name, part, part)}

    x = torch.arange(16).view(4, 4)
    kinds = [domain("a", x), domain("b", x), domain("a", x.float()), domain("a", x.view(4, 2, 2)), domain("a", x + 1)]
    assert len({files.digest(kind) for kind in kinds} | {files.digest(kinds[0], "re-rendered")}) == len(kinds) + 1
    assert files.digest(kinds[0]) == files.digest(domain("a", x.clone()))


def test_cache_is_used_when_whole_and_told_the_same(own_cache):
    made = []

    def make():
        made.append(1)
        return {"x": np.arange(1000)}

    for _ in range(2):
        assert np.array_equal(files.cached("thing", "recipe 1", make)["x"], np.arange(1000))
    assert len(made) == 1
    files.cached("thing", "recipe 2", make)
    assert len(made) == 2
    for path in own_cache.iterdir():
        raw = bytearray(path.read_bytes())
        raw[-10] ^= 1
        path.write_bytes(raw)
    assert np.array_equal(files.cached("thing", "recipe 1", make)["x"], np.arange(1000))
    assert len(made) == 3


def test_cache_that_cannot_be_written_is_no_obstacle(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("KD3A_CACHE", str(tmp_path / "file"))
    with pytest.warns(UserWarning, match="thing could not be cached"):
        assert files.cached("thing", "recipe", lambda: {"x": np.ones(3)})["x"].sum() == 3
