"""What the rows *KD3A* and *FedAvg* stand for on each page: the book's page of names, read from the params files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from kd3a import report
from kd3a.errors import choose
from kd3a.records import ROOT
from kd3a.settings import SCALES
from kd3a.study import MethodEntry, Study, shipped

#: The pages with rows of these methods, in the book's order. A study belongs to the page that its name begins with.
PAGES = (
    "benchmarks/digits",
    "benchmarks/digit5",
    "benchmarks/amazon",
    "benchmarks/office-caltech10",
    "benchmarks/domainnet",
    "studies/ablation",
    "studies/augmentation",
    "studies/gate",
    "studies/negative-transfer",
    "studies/rounds",
    "studies/sensitivity",
    "studies/paper-against-code",
)
ELSEWHERE = dict.fromkeys(("pacs", "pacs-features", "domainnet126"), "benchmarks/domainnet")
METHODS = {"kd3a": "KD3A", "fedavg": "FedAvg"}
OWN = ("paper", "official", "as written")  # names of rows of KD3A that do not begin with it
SITUATION = ("poison", "attack")  # what befalls a method is no setting of it


def page_of(study: str) -> str | None:
    """The page that shows a study; nothing if its rows are not named so, as in the searches.

    >>> page_of("ablation-digit5"), page_of("tuning")
    ('studies/ablation', None)
    """
    found = [page for page in PAGES if f"{study}-".startswith(f"{page.rpartition('/')[2]}-")]
    return ELSEWHERE.get(study) or next(iter(found), None)


def name_of(entry: MethodEntry) -> str:
    """The name in a row's title, without what the title says besides; a row without one is called by its method.

    >>> [name_of(MethodEntry(method="kd3a", label=t)) for t in ("KD3A (official), r = 2", "paper + mixup", "gate 0.5")]
    ['KD3A (official)', 'paper', 'KD3A']
    """
    name = entry.title.rpartition(" · ")[2].partition(",")[0].partition(" + ")[0].partition(" − ")[0]
    return name if name.startswith(tuple(METHODS.values())) or name in OWN else METHODS[entry.method]


def meanings(study: Study) -> dict[str, dict[str, Any]]:
    """The settings that each name changes in a study: those of the row with just this title, or what its rows share."""
    rows: dict[str, dict[str, dict[str, Any]]] = {}
    for entry in study.methods:
        if entry.method in METHODS:
            told = {name: value for name, value in (entry.config | entry.training).items() if name not in SITUATION}
            rows.setdefault(name_of(entry), {})[entry.title] = told
    return {name: mine.get(name, shared(list(mine.values()))) for name, mine in rows.items()}


def shared(settings: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """What all of them have in common.

    >>> shared([{"teachers": "train", "mixup": 0.0}, {"teachers": "train"}])
    {'teachers': 'train'}
    """
    first, *others = settings
    return {name: value for name, value in first.items() if all((name, value) in o.items() for o in others)}


def words(settings: dict[str, Any] | None) -> str:
    """Settings in Markdown.

    >>> words({"mixup": 0.0}), words({}), words(None)
    ('`mixup: 0.0`', 'as published', '–')
    """
    if settings is None:
        return "–"
    return ", ".join(f"`{name}: {value}`" for name, value in settings.items()) or "as published"


def found(scale: str) -> Iterator[tuple[str, Study]]:
    """Page and study of every params file of a scale with rows of these methods, page by page."""
    choose("scale", scale, SCALES)
    studies = [path.parent.name for path in sorted((ROOT / "params").glob(f"*/{scale}.yaml"))]
    for page in PAGES:
        yield from ((page, shipped(name, scale)) for name in studies if page_of(name) == page)


def link(page: str) -> str:
    """A link from a page in another folder."""
    return f"[{page.rpartition('/')[2]}](../{page}.ipynb)"


def plain(scale: str) -> str:
    """What *KD3A* and *FedAvg* are on each page and its data, in Markdown."""
    lines: dict[tuple[str, ...], list[str]] = {}
    for page, study in found(scale):
        told = meanings(study)
        if set(told) & set(METHODS.values()):
            cells = [words(told.get(name)) for name in METHODS.values()]
            lines.setdefault((link(page), *cells), []).append(f"`{study.dataset}`")
    return report.markdown(
        ("page", "data", *(f"*{name}*" for name in METHODS.values())),
        [(page, ", ".join(dict.fromkeys(data)), *cells) for (page, *cells), data in lines.items()],
    )


def others(scale: str) -> str:
    """What the other names are, and where, in Markdown; a name with several meanings has a line for each."""
    lines: dict[str, dict[str, list[str]]] = {}
    for page, study in found(scale):
        for name, settings in meanings(study).items():
            if name not in METHODS.values():
                lines.setdefault(name, {}).setdefault(words(settings), []).append(link(page))
    return report.markdown(
        ("row", "what it is", "where"),
        [
            (f"*{name}*", told, ", ".join(dict.fromkeys(pages)))
            for name, places in sorted(lines.items())
            for told, pages in places.items()
        ],
    )
