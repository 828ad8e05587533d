"""A second, strongly augmented view of a batch: RandAugment for all samples at once, on their device."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from kd3a.losses import full_precision

OPERATIONS = ("brightness", "contrast", "colour", "solarise", "rotate", "shear x", "shear y", "shift x", "shift y")
CHOSEN = 2  # operations on each image
FEATURE_DROPOUT = 0.2


def strong_view(x: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """Two random operations on every image; dropout on plain features. Draws from torch's global generator.

    RandAugment's ranges: factors 0.1 to 1.9 for brightness, contrast and colour, thresholds down to 0.1 for solarise,
    ±30° of rotation, ±0.3 of shear and of shift. Those of its operations that need a histogram are left out, as are
    DAEL's cutout and flip.

    Args:
        x: normalised RGB images (B, 3, H, W), or features (B, d).
        mean, std: of the normalisation, ``(pixel - mean) / std`` with pixels in [0, 1]; (1 or 3, 1, 1).

    >>> strong_view(torch.zeros(2, 3, 8, 8), torch.tensor(0.5), torch.tensor(0.5)).shape
    torch.Size([2, 3, 8, 8])
    """
    if x.ndim != 4:
        return F.dropout(x, FEATURE_DROPOUT)
    draw = torch.rand(2, len(x), len(OPERATIONS), device=x.device)
    strength = (2 * draw[0] - 1) * (draw[1].argsort(-1) < CHOSEN)  # (B, 9): in [-1, 1], 0 for what is not done
    images = painted(x * std + mean, strength[:, :4])
    return (moved(images, strength[:, 4:]) - mean) / std


def painted(images: Tensor, strength: Tensor) -> Tensor:
    """Brightness, contrast, colour and solarise, by strengths (B, 4) in [-1, 1]; pixels in [0, 1] before and after."""
    brightness, contrast, colour, solarise = (0.9 * strength + 1).T[..., None, None, None]  # each (B, 1, 1, 1)
    images = images * brightness
    grey = images.mean((1, 2, 3), keepdim=True)
    images = grey + (images - grey) * contrast
    grey = images.mean(1, keepdim=True)
    images = (grey + (images - grey) * colour).clamp(0, 1)
    threshold = 1 - (solarise - 1).abs()  # 1 where it is not done, down to 0.1
    return torch.where(images > threshold, 1 - images, images)


def moved(images: Tensor, strength: Tensor) -> Tensor:
    """Rotation, shears and shifts in one affine map, by strengths (B, 5) in [-1, 1]; the edge fills what comes in."""
    angle, shear, shift = strength[:, 0] * math.pi / 6, strength[:, 1:3] * 0.3, strength[:, 3:] * 0.6
    cosine, sine = angle.cos(), angle.sin()
    rows = [cosine, shear[:, 0] - sine, shift[:, 0], shear[:, 1] + sine, cosine, shift[:, 1]]
    with full_precision(images):  # bfloat16 would move pixels by half their width
        grid = F.affine_grid(torch.stack(rows, -1).view(-1, 2, 3), list(images.shape), align_corners=False)
    return F.grid_sample(images, grid, padding_mode="border", align_corners=False)
