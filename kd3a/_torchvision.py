"""``torchvision``, importable beside any build of torch.

The wheels on PyPI carry operators compiled for CUDA. Beside a CPU build of torch they do not load, and the import ends
with "operator torchvision::nms does not exist". Nothing here uses those operators, so declaring what they look like is
enough. Everything of this package that needs torchvision imports it from here.
"""

from __future__ import annotations

import sys

import torch

SCHEMAS = {
    "nms": "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms": "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
}

try:
    import torchvision
except RuntimeError as error:
    if "torchvision::" not in str(error):
        raise
    for module in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
        del sys.modules[module]  # what the failed import has left behind
    library = torch.library.Library("torchvision", "DEF")  # lives as long as this module: its end takes the schemas
    for operator, schema in SCHEMAS.items():
        library.define(operator + schema)
    import torchvision

__all__ = ["torchvision"]
