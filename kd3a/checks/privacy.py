"""Assignment 6: attack and defend. Gradients of single images are made here, so that the truth is known."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from kd3a.checks.core import Case, Question, Student, close, number, numbers, require


def _tensor(values: np.ndarray) -> Tensor:
    return torch.from_numpy(np.asarray(values)).float()


# --- reading a label --------------------------------------------------------------------------------------------------


def _head_gradient(label: int, scores: np.ndarray, features: np.ndarray) -> Tensor:
    """Of the cross-entropy by the weights of the last layer, (C, F)."""
    error = np.exp(scores - scores.max())
    error /= error.sum()
    error[label] -= 1
    return _tensor(np.outer(error, features))


def _label(read: Student, weight_gradient: Tensor) -> int:
    value = number(read(weight_gradient))
    require(value == int(value) and 0 <= value < len(weight_gradient), "this is not the number of a class")
    return int(value)


def _label_basics(read: Student) -> None:
    _label(read, _head_gradient(1, np.zeros(3), np.ones(4)))


READ_LABEL = Question("read_label", "read_label(weight_gradient) -> class", _label_basics)


def _images(classes: tuple[int, ...], silent: bool = False, scale: float = 1.0):
    def cases(rng: np.random.Generator) -> Iterator[Case]:
        for number_of_classes in classes:
            for label in range(number_of_classes):
                features = rng.uniform(0.5, 2, 4)
                if silent:
                    features[0] = 0
                scores = rng.normal(0, 1, number_of_classes)
                yield {"label": label, "weight_gradient": scale * _head_gradient(label, scores, features)}

    return cases


def _right(read: Student, label: int, weight_gradient: Tensor) -> None:
    require(_label(read, weight_gradient) == label, "this is not the label that the gradient was made with")


@READ_LABEL.property("the odd one out", 2, _images((3, 5, 10)))
def _odd(read: Student, label: int, weight_gradient: Tensor) -> None:
    """The gradient pushes the scores of all classes down and of one class up: that one is the label."""
    _right(read, label, weight_gradient)


@READ_LABEL.property("two classes", 1, _images((2,)))
def _two(read: Student, label: int, weight_gradient: Tensor) -> None:
    """With two classes both rows are equally long, and the label can still be read."""
    _right(read, label, weight_gradient)


@READ_LABEL.property("silent features", 1, _images((3, 4), silent=True))
def _silent(read: Student, label: int, weight_gradient: Tensor) -> None:
    """A feature that is 0 has no gradient; the others still tell."""
    _right(read, label, weight_gradient)


@READ_LABEL.property("any scale", 1, _images((3, 4), scale=1e-3))
def _scale(read: Student, label: int, weight_gradient: Tensor) -> None:
    """A gradient that came scaled, by a learning rate say, tells the same."""
    _right(read, label, weight_gradient)


# --- reading an input -------------------------------------------------------------------------------------------------


def _input_basics(read: Student) -> None:
    numbers(read(torch.ones(2, 3), torch.ones(2)), (3,))


READ_INPUT = Question("read_input", "read_input(weight_gradient, bias_gradient) -> input", _input_basics)


def _layer(errors: np.ndarray, x: np.ndarray) -> Case:
    return {"weight_gradient": _tensor(np.outer(errors, x)), "bias_gradient": _tensor(errors)}


def _found(read: Student, weight_gradient: Tensor, bias_gradient: Tensor) -> None:
    loudest = bias_gradient.abs().argmax()
    x = weight_gradient[loudest] / bias_gradient[loudest]
    require(close(read(weight_gradient, bias_gradient), x, 1e-3), "this input does not cause that gradient")


def _layers(make):
    def cases(rng: np.random.Generator) -> Iterator[Case]:
        for units, inputs in ((1, 1), (2, 1), (2, 3), (4, 8)):
            errors = make(rng, units)
            if errors is not None:
                yield _layer(errors, rng.uniform(-1, 1, inputs))

    return cases


@READ_INPUT.property("the input is found", 2, _layers(lambda rng, units: rng.uniform(0.5, 1, units)))
def _exact(read: Student, weight_gradient: Tensor, bias_gradient: Tensor) -> None:
    """The first layer's gradients of one image determine the image, exactly."""
    _found(read, weight_gradient, bias_gradient)


@READ_INPUT.property("negative gradients", 1, _layers(lambda rng, units: -rng.uniform(0.5, 1, units)))
def _negative(read: Student, weight_gradient: Tensor, bias_gradient: Tensor) -> None:
    """It does not matter in which direction a unit is pushed."""
    _found(read, weight_gradient, bias_gradient)


def _half_off(rng: np.random.Generator, units: int) -> np.ndarray | None:
    if units < 2:
        return None
    errors = rng.uniform(0.5, 1, units)
    errors[0] = 0
    return errors


@READ_INPUT.property("units that are off", 1, _layers(_half_off))
def _off(read: Student, weight_gradient: Tensor, bias_gradient: Tensor) -> None:
    """A unit that is off, after a ReLU say, has no gradient; the others still tell."""
    _found(read, weight_gradient, bias_gradient)


def _cancelling(rng: np.random.Generator, units: int) -> np.ndarray | None:
    if units < 2:
        return None
    errors = np.ones(units)
    errors[units // 2 :] = -1
    return errors


@READ_INPUT.property("gradients that cancel", 1, _layers(_cancelling))
def _cancel(read: Student, weight_gradient: Tensor, bias_gradient: Tensor) -> None:
    """Half of the units are pushed up, half down, and together by nothing; each of them still tells."""
    _found(read, weight_gradient, bias_gradient)


# --- defending --------------------------------------------------------------------------------------------------------


def _clip_basics(clip: Student) -> None:
    numbers(clip(torch.tensor([3.0, 4.0]), 1.0), (2,))


CLIP = Question("clip", "clip(update, limit) -> update", _clip_basics)


def _updates(lengths: tuple[float, ...], even: bool = False):
    def cases(rng: np.random.Generator) -> Iterator[Case]:
        for size in (1, 2, 5):
            for length in lengths:
                update = np.ones(size) if even else rng.normal(0, 1, size)
                yield {"update": _tensor(length * update / np.linalg.norm(update)), "limit": 1.0}

    return cases


def _clipped(clip: Student, update: Tensor, limit: float) -> np.ndarray:
    return numbers(clip(update, limit), tuple(update.shape))


@CLIP.property("never longer than the limit", 1, _updates((1.5, 4.0, 100.0)))
def _short(clip: Student, update: Tensor, limit: float) -> None:
    """However long an update is, its Euclidean length is at most the limit afterwards."""
    require(np.linalg.norm(_clipped(clip, update, limit)) <= limit + 1e-4, "it is longer than the limit")


@CLIP.property("the direction is kept", 1, _updates((1.5, 4.0)))
def _direction(clip: Student, update: Tensor, limit: float) -> None:
    """A clipped update is shorter, not turned, and not thrown away."""
    value, before = _clipped(clip, update, limit), update.double().numpy()
    length = np.linalg.norm(value) * np.linalg.norm(before)
    require(length > 1e-6 and value @ before / length > 0.999, "it points another way")


@CLIP.property("short updates are left alone", 1, _updates((0.2, 0.9), even=True))
def _alone(clip: Student, update: Tensor, limit: float) -> None:
    """An update within the limit is not changed."""
    require(close(_clipped(clip, update, limit), update), "it was short enough, and it was changed")


@CLIP.property("nothing stays nothing", 1, lambda rng: [{"update": torch.zeros(n), "limit": 1.0} for n in (1, 3)])
def _nothing(clip: Student, update: Tensor, limit: float) -> None:
    """An update of zeros is returned as zeros."""
    require(close(_clipped(clip, update, limit), update), "these are not zeros")


def _trim_basics(trimmed_mean: Student) -> None:
    numbers(trimmed_mean(torch.tensor([[1.0, 2.0], [1.0, 2.0], [1.0, 2.0]]), 1), (2,))


TRIMMED_MEAN = Question("trimmed_mean", "trimmed_mean(updates, trim) -> update", _trim_basics)


def _trimmed(trimmed_mean: Student, updates: Tensor, trim: int) -> np.ndarray:
    return numbers(trimmed_mean(updates, trim), (updates.shape[1],))


def _houses(trim: int, liar: float = 0.0, width: int | None = None):
    def cases(rng: np.random.Generator) -> Iterator[Case]:
        for houses, size in ((3, 1), (4, 2), (6, 5)):
            updates = _tensor(rng.normal(0, 1, (houses, width or size)))
            if liar:
                updates[-1] = liar
            yield {"updates": updates, "trim": trim}

    return cases


@TRIMMED_MEAN.property("without trimming it is the mean", 1, _houses(0))
def _mean(trimmed_mean: Student, updates: Tensor, trim: int) -> None:
    """With trim = 0 nothing is cut off."""
    require(close(_trimmed(trimmed_mean, updates, trim), updates.mean(0)), "this is not the mean")


@TRIMMED_MEAN.property("a liar is cut off", 2, _houses(1, liar=1000.0))
def _liar(trimmed_mean: Student, updates: Tensor, trim: int) -> None:
    """With trim = 1 one liar cannot move the result out of the range of the honest updates."""
    value, honest = _trimmed(trimmed_mean, updates, trim), updates[:-1].double()
    inside = (value >= honest.amin(0).numpy() - 1e-4) & (value <= honest.amax(0).numpy() + 1e-4)
    require(inside.all(), "the last update is a lie, and it shows")


@TRIMMED_MEAN.property("both ends are cut", 1, _houses(1))
def _ends(trimmed_mean: Student, updates: Tensor, trim: int) -> None:
    """Lies may be large or small: all updates negated give the negated result."""
    values = _trimmed(trimmed_mean, updates, trim), _trimmed(trimmed_mean, -updates, trim)
    require(close(values[1], -values[0]), "the second call had all updates negated")


@TRIMMED_MEAN.property("every coordinate for itself", 1, _houses(1, width=3))
def _coordinates(trimmed_mean: Student, updates: Tensor, trim: int) -> None:
    """A house may be cut off in one coordinate and kept in another: who sent which value does not matter."""
    shuffled = updates.clone()
    shuffled[:, 0] = updates[:, 0].roll(1)
    values = _trimmed(trimmed_mean, updates, trim), _trimmed(trimmed_mean, shuffled, trim)
    require(close(values[1], values[0]), "the second call had the first coordinates exchanged among the houses")
