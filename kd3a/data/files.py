"""Downloaded files: where they lie, reading them safely, and one hash for all data.

Whatever is wrong with a file is told in one sentence that names it. Nothing here ever unpickles.
"""

from __future__ import annotations

import hashlib
import os
import warnings
import zipfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

import numpy as np
import platformdirs
import torch
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from kd3a.domains import Domain, Part
from kd3a.errors import UserError, listing

Arrays = dict[str, np.ndarray]


def root(data: Path | None) -> Path:
    """The folder of downloaded data: ``data`` or the environment variable ``KD3A_DATA``."""
    folder = data or os.environ.get("KD3A_DATA")
    if not folder:
        raise UserError("This dataset is not built in: name its folder with --data DIR or set KD3A_DATA.")
    return Path(folder)


def need(path: Path, what: str, how: str) -> Path:
    """``path`` itself if the file is there; otherwise the error says what was expected there and how to get it."""
    if not os.path.isfile(path):
        raise missing(path, what, how)
    return path


def missing(path: Path, what: str, how: str) -> UserError:
    return UserError(f"There is no file {path}: expected {what}; {how}.")


def pick(arrays: Mapping[str, np.ndarray], path: Path, *names: str) -> np.ndarray:
    """The first of ``names`` that the file at ``path`` holds."""
    for name in names:
        if name in arrays:
            return arrays[name]
    raise UserError(f"{path} has no array {' or '.join(names)}; it holds {listing(arrays) or 'nothing'}.")


def damaged(path: Path, kind: str, error: Exception) -> UserError:
    reason = " ".join(str(error).split()).split(". ")[0].rstrip(".") or type(error).__name__
    return UserError(f"{path} is damaged or not {kind} ({reason}); get the file again.")


def read_npz(path: Path) -> Arrays:
    """All arrays of an ``.npz`` file. Arrays of Python objects are refused: they would have to be unpickled."""
    try:
        if not zipfile.is_zipfile(path):
            raise ValueError("no zip archive")
        with np.load(path, allow_pickle=False) as file:
            return {name: file[name] for name in file.files}
    except Exception as error:  # NumPy, zipfile and zlib each have their own
        raise damaged(path, "an .npz file of plain arrays", error) from None


def read_mat(path: Path) -> Arrays:
    """All variables of a MATLAB file (versions 4 to 7.2), cells as object arrays."""
    from scipy.io import loadmat

    try:
        return {name: value for name, value in loadmat(path).items() if not name.startswith("__")}
    except Exception as error:  # SciPy raises whatever the damaged bytes lead to
        raise damaged(path, "a MATLAB .mat file", error) from None


def read_idx(path: Path) -> np.ndarray:
    """An array of bytes in MNIST's idx format: two zeros, type 8, rank, big-endian sizes, then the values."""
    raw = path.read_bytes()
    if len(raw) < 4 or raw[:3] != b"\x00\x00\x08":
        raise damaged(path, "an idx file of bytes", ValueError("wrong first bytes"))
    sizes = np.frombuffer(raw, ">u4", min(raw[3], len(raw) // 4 - 1), 4).astype(int)
    start = 4 + 4 * raw[3]
    if len(raw) != start + sizes.prod():
        raise damaged(path, "an idx file of bytes", ValueError(f"{len(raw):,} bytes for sizes {tuple(sizes.tolist())}"))
    return np.frombuffer(raw, np.uint8, offset=start).reshape(sizes)


def read_libsvm(path: Path, features: int) -> tuple[np.ndarray, np.ndarray]:
    """Dense features (N, features) and labels of a libsvm text file, compressed or not."""
    from sklearn.datasets import load_svmlight_file

    try:
        x, y = load_svmlight_file(os.fspath(path), n_features=features)
    except Exception as error:
        raise damaged(path, f"a libsvm file with {features} features", error) from None
    return x.toarray(), y


def domain(name: str, arrays: Arrays) -> Domain:
    """A domain of the arrays ``x_train``, ``y_train``, ``x_test`` and ``y_test``."""
    return Domain(name, *(Part(*(torch.from_numpy(arrays[f"{a}_{part}"]) for a in "xy")) for part in ("train", "test")))


def digest(domains: Mapping[str, Domain], note: str = "") -> str:
    """SHA-256 over the names, types, shapes and bytes of all tensors, in order, and over a ``note`` on their origin."""
    sha = hashlib.sha256(note.encode())
    for name, domain in domains.items():
        for split, part in (("train", domain.train), ("test", domain.test)):
            for field, tensor in part.tensors().items():
                array = tensor.numpy()
                sha.update(f"{name}.{field}_{split} {array.dtype} {array.shape}".encode() + array.tobytes())
    return sha.hexdigest()


def cache_folder() -> Path:
    """The folder ``KD3A_CACHE`` or the user's cache folder."""
    return Path(os.environ.get("KD3A_CACHE") or platformdirs.user_cache_dir("kd3a"))


def cache_path(name: str, told: str) -> Path:
    """The file of the cache that :func:`cached` reads."""
    return cache_folder() / f"{name}-{hashlib.sha256(told.encode()).hexdigest()[:12]}.safetensors"


def cached(name: str, told: str, make: Callable[[], Arrays]) -> Arrays:
    """The arrays that ``make`` returns, kept in the cache folder for the next call that is ``told`` the same."""
    path = cache_path(name, told)
    try:
        with safe_open(path, framework="np") as file:
            arrays = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 (not a dict)
            if file.metadata() == {"sha256": _sum(arrays)}:
                return arrays
    except (OSError, SafetensorError):
        pass
    arrays = make()
    draft = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        draft.write_bytes(save(arrays, metadata={"sha256": _sum(arrays)}))
        os.replace(draft, path)
    except OSError as error:  # it only costs time
        with suppress(OSError):
            draft.unlink(missing_ok=True)
        warnings.warn(
            f"{name} could not be cached in {path.parent} ({error}): every run will make it anew.", stacklevel=2
        )
    return arrays


def _sum(arrays: Arrays) -> str:
    return hashlib.sha256(b"".join(name.encode() + arrays[name].tobytes() for name in sorted(arrays))).hexdigest()
