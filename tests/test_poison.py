"""The poison ``letters``: an irrelevant source. The other kinds are tested in test_decentralised.py."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from kd3a.data import digits
from kd3a.data.letters import LETTERS, letters
from kd3a.domains import Domain, Part, Task
from kd3a.errors import UserError
from kd3a.poison import Poison, poisoned
from kd3a.settings import Training


def part(size: int, shape: tuple[int, ...] = (3, 32, 32)) -> Part:
    return Part(torch.full((size, *shape), 7, dtype=torch.uint8), torch.arange(size) % 10, mean=0.4, std=0.2)


@pytest.fixture
def task() -> Task:
    domains = [Domain(name, part(60), part(20)) for name in ("amber", "beige", "coral")]
    return Task("images", tuple(domains[:2]), domains[2], digits.CLASSES, "")


def test_letters_are_the_same_for_the_same_seed():
    x, y = letters(40, seed=3)
    again, other = letters(40, seed=3), letters(40, seed=4)
    assert np.array_equal(x, again[0]) and np.array_equal(y, again[1]) and not np.array_equal(x, other[0])
    assert (x.shape, x.dtype, y.dtype) == ((40, 3, 32, 32), np.uint8, np.int64)
    assert np.bincount(y).tolist() == [4] * 10 and len({image.tobytes() for image in x}) == 40


def test_letters_are_ten_and_no_digits():
    assert len(set(LETTERS)) == 10 and not set(LETTERS) & set("ABCDGIJLOPQSTUYZ" + "".join(digits.CLASSES))


def test_labels_say_what_is_drawn():
    """The nearest mean of one seed's letters, in grey and without regard to which of ink and paper is lighter, names
    those of another seed far above the tenth that chance names."""

    def shapes(x: np.ndarray) -> np.ndarray:
        grey = np.tensordot(x.transpose(0, 2, 3, 1), digits.LUMA, 1).reshape(len(x), -1)
        grey = grey - np.median(grey, 1, keepdims=True)  # paper is what there is most of
        return np.abs(grey) / np.linalg.norm(grey, axis=1, keepdims=True)

    (x, y), (x_new, y_new) = letters(1000, seed=0), letters(300, seed=1)
    means = np.stack([shapes(x[y == label]).mean(0) for label in range(10)])
    named = (shapes(x_new) @ means.T / np.linalg.norm(means, axis=1)).argmax(1)
    assert (named == y_new).mean() > 0.4


def test_an_irrelevant_source_is_all_letters(task):
    bad = poisoned(task, Poison("beige", 1.0, "letters"), seed=5)
    was, now = task.sources[1].train, bad.sources[1].train
    x, _ = letters(60, seed=5)
    assert {image.tobytes() for image in now.x.numpy()} == {image.tobytes() for image in x}
    assert (now.shape, now.x.dtype, now.y.dtype, len(now)) == (was.shape, was.x.dtype, was.y.dtype, len(was))
    assert (now.mean, now.std, now.nbytes) == (was.mean, was.std, was.nbytes)
    again = poisoned(task, Poison("beige", 1.0, "letters"), seed=5).sources[1].train
    assert torch.equal(again.x, now.x) and torch.equal(again.y, now.y)


def test_a_letter_keeps_its_label(task):
    now = poisoned(task, Poison("beige", 1.0, "letters"), seed=5).sources[1].train
    known = {image.tobytes(): label for image, label in zip(*letters(60, seed=5), strict=True)}
    assert [known[image.tobytes()] for image in now.x.numpy()] == now.y.tolist()


@pytest.mark.parametrize(("rate", "number"), [(0.0, 0), (0.25, 15), (0.5, 30)])
def test_only_the_chosen_share_is_replaced(task, rate, number):
    was, now = task.sources[1].train, poisoned(task, Poison("beige", rate, "letters"), seed=0).sources[1].train
    touched = (now.x != was.x).flatten(1).any(1)
    assert touched.sum() == number and torch.equal(now.y[~touched], was.y[~touched])


def test_nothing_else_changes(task):
    bad = poisoned(task, Poison("beige", 1.0, "letters"), seed=0)
    assert bad.target is task.target and bad.sources[0].train is task.sources[0].train
    assert all(ours.test is theirs.test for ours, theirs in zip(bad.sources, task.sources, strict=True))


def test_letters_take_the_place_of_synth_only_in_training():
    domains = digits.load()[0]
    task = Task("digits", (domains["mnist"], domains["synth"]), domains["mnist_m"], digits.CLASSES, "")
    bad = poisoned(task, Poison("synth", 1.0, "letters"), seed=0).sources[1]
    assert bad.test is domains["synth"].test and bad.train.x.shape == domains["synth"].train.x.shape
    assert not torch.equal(bad.train.x, domains["synth"].train.x)


@pytest.mark.parametrize(
    "other",
    [part(10, (3, 28, 28)), part(10, (1, 32, 32)), Part(torch.zeros(10, 3, 32, 32), torch.arange(10))],
    ids=["28×28", "grey", "float"],
)
def test_other_data_are_refused_in_one_sentence(task, other):
    odd = replace(task, sources=(task.sources[0], Domain("beige", other, other)))
    with pytest.raises(UserError, match=r"^Poison letters replaces 32×32 .*; beige has other data\.$"):
        poisoned(odd, Poison("beige", 1.0, "letters"), seed=0)


def test_other_numbers_of_classes_are_refused(task):
    with pytest.raises(UserError, match="ten classes"):
        poisoned(replace(task, classes=("a", "b", "c")), Poison("beige", 1.0, "letters"), seed=0)


def test_settings_know_letters():
    assert Poison.parse(Training.read({"poison": "synth:1:letters"}, "training").poison).kind == "letters"
