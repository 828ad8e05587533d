"""A progress bar for terminals and notebooks, there drawn by ipywidgets if installed; silent everywhere else."""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from typing import Any


class Progress:
    """One bar per run: rounds done, time left, and the last epoch's accuracy, gate and weights.

    ``KD3A_PROGRESS=0`` silences it; pipes have no terminal and see nothing anyway.
    """

    def __init__(self, title: str, total: int, done: int = 0, quiet: bool = False):
        bar = None if quiet or os.environ.get("KD3A_PROGRESS") == "0" else _bar_class()
        self.bar = bar(total=total, initial=done, desc=title, unit="round", leave=False) if bar else None

    def advance(self, entry: dict[str, Any]) -> None:
        if self.bar is None:
            return
        if entry:
            facts = {"acc": f"{entry['target_accuracy']:.3f}"}
            if entry["gate"] is not None:
                facts["gate"] = f"{entry['gate']:.3f}"
            facts |= {name: f"{weight:.2f}" for name, weight in entry["weights"].items()}
            self.bar.set_postfix(facts, refresh=False)
        self.bar.update()

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        if self.bar is not None:
            self.bar.close()


def _bar_class():
    notebook = "ipykernel" in sys.modules
    if notebook and find_spec("ipywidgets"):
        from tqdm.notebook import tqdm

        return tqdm
    if notebook or sys.stderr.isatty():
        from tqdm import tqdm

        return tqdm
    return None
