"""The parameters that papermill gives a notebook: what cannot be meant is refused before anything is trained."""

from __future__ import annotations

import ast
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kd3a.errors import UserError, listing
from kd3a.study import fields_given

#: How the cell begins that papermill puts below a notebook's own parameters.
INJECTED = "# Parameters"


def assigned(cell: str) -> list[str]:
    """The names to which a cell gives values, in order; none if it is not plain Python.

    >>> assigned('scale: str = "cpu"; train = False')
    ['scale', 'train']
    """
    try:
        nodes = list(ast.walk(ast.parse(cell)))
    except SyntaxError:
        return []
    return [node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)]


def check_injected(notebook: str, names: Mapping[str, Any]) -> None:
    """Refuse a parameter given by papermill that neither a cell above it nor a whole params file knows.

    IPython keeps the cells that ran in ``In``; variables that a notebook makes later are not looked at.
    """
    cells = names.get("In", [])
    given = [number for number, cell in enumerate(cells) if cell.startswith(INJECTED)]
    if not given:
        return
    above = [cell for number, cell in enumerate(cells[: given[-1]]) if number not in given]
    known = dict.fromkeys(name for cell in above for name in assigned(cell))
    for name in assigned(cells[given[-1]]):
        if name not in known and name not in fields_given(names):
            raise UserError(
                f"{notebook} has no parameter {name!r}: choose one of {listing(known)}, or pass a whole study with "
                "-f params/<study>/<scale>.yaml."
            )


def check_page(notebook: str, names: Mapping[str, Any], results: Any = "", train: Any = False, **texts: Any) -> None:
    """Refuse what cannot be meant among the parameters of a page that shows records; ``names`` are the notebook's."""
    check_injected(notebook, names)
    check_given(train, results=results, **texts)
    check_folder(results, train)


def check_given(train: Any, **texts: Any) -> None:
    """Refuse what papermill did not turn into the kind of value that is needed."""
    if not isinstance(train, bool):
        raise UserError(f"Parameter train = {train!r}: write True or False.")
    for name, value in texts.items():
        if not isinstance(value, str):
            raise UserError(f"Parameter {name} = {value!r} is not a text: pass it with papermill's -r instead of -p.")


def check_folder(results: str, train: bool) -> None:
    """Refuse a folder of records that is not there; for training it is made."""
    told = results or os.environ.get("KD3A_RESULTS")
    if not told:
        return
    where, folder = "Parameter results" if results else "KD3A_RESULTS", Path(told).absolute()
    if train:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(
                f"{where}: the folder {folder} cannot be made ({error.strerror}); name another one."
            ) from None
    elif not folder.is_dir():
        raise UserError(f"{where}: there is no folder {folder}; name one with records, or train with -p train True.")


def positive(name: str, value: Any) -> float:
    """A parameter that must be a number above 0.

    >>> positive("teraflops", 30.0)
    30.0
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise UserError(f"Parameter {name} = {value!r}: write a number above 0.")
    return value
