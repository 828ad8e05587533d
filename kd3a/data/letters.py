"""Ten letters drawn as the digits of ``synth`` are: a domain of the same look and another task.

Fonts, colours, turn, shift, scale, neighbours, blur and noise are those of :func:`kd3a.data.digits.synth_image`. The
letters are those that look like no digit: left out are C, D, O, Q and U (0), I, J and L (1), Z (2), A (4), S (5),
G (6), T and Y (7), B (8) and P (9).
"""

from __future__ import annotations

import numpy as np

from kd3a.data.digits import SIZE, synth_image

LETTERS = tuple("EFHKMNRVWX")


def letters(number: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Images (N, 3, 32, 32), uint8, and labels (N,), each the place of its letter in ``LETTERS``; balanced.

    The same for the same seed, a third of a second for 2,000.

    >>> x, y = letters(20, seed=0)
    >>> x.shape, np.bincount(y).tolist()
    ((20, 3, 32, 32), [2, 2, 2, 2, 2, 2, 2, 2, 2, 2])
    """
    rng = np.random.default_rng([2021, seed])
    y = rng.permutation(np.arange(number) % len(LETTERS))
    x = np.empty((number, 3, SIZE, SIZE), np.uint8)
    for image, label in zip(x, y, strict=True):
        image[:] = synth_image(rng, int(label), LETTERS).transpose(2, 0, 1)
    return x, y
