"""The image benchmarks: Office-Caltech10, PACS, DomainNet, and anybody's own folder.

Office-Caltech10 and PACS are small: by default the full target domain is scored, on the images its unlabelled pool
consists of (transductive); the names that end in ``-split`` keep 20 % of every class of every domain for scoring.
Names in ``-official`` are the released code's pipelines: random crops and mirroring, no ImageNet normalisation, and for
Office-Caltech10 that split; the paper names no augmentation but mixup. Names with a number resize to so many pixels,
for CPUs; names with ``-features`` hold the features of a frozen backbone.
"""

from __future__ import annotations

from dataclasses import replace

from kd3a.data.features import Features
from kd3a.data.folder import Folder

OFFICE = Folder(
    "office-caltech10",
    "office-caltech10",
    ("amazon", "caltech", "dslr", "webcam"),
    10,
    split="all",
    keep="resident",
    note="Office-Caltech10 (Gong et al., 2012) has 958, 1,123, 157 and 295 images.",
)
PACS = Folder(
    "pacs",
    "pacs",
    ("art_painting", "cartoon", "photo", "sketch"),
    7,
    128,
    split="all",
    keep="resident",
    note="PACS (Li et al., 2017) has 2,048, 2,344, 1,670 and 3,929 images.",
)
DOMAINNET = Folder(
    "domainnet",
    "domainnet",
    ("clipart", "infograph", "painting", "quickdraw", "real", "sketch"),
    345,
    split="lists",
    keep="streamed",
    note="DomainNet (Peng et al., 2019), cleaned version, has 586,575 images; the lists come with it.",
)

IMAGES: dict[str, Folder | Features] = {
    dataset.name: dataset
    for dataset in (
        OFFICE,
        replace(OFFICE, name="office-caltech10-96", size=96),
        replace(OFFICE, name="office-caltech10-split", split="stratified"),
        replace(OFFICE, name="office-caltech10-official", split="stratified", augment=True, normalise=False),
        Features("office-caltech10-features", OFFICE),
        Features("office-caltech10-features-split", replace(OFFICE, split="stratified")),
        PACS,
        replace(PACS, name="pacs-96", size=96),
        replace(PACS, name="pacs-split", split="stratified"),
        Features("pacs-features", PACS),
        Features("pacs-features-split", replace(PACS, split="stratified")),
        DOMAINNET,
        replace(DOMAINNET, name="domainnet-official", augment=True, normalise=False),
        replace(  # the 126 classes and four domains of MiniDomainNet's lists, at its 96 pixels
            DOMAINNET,
            name="domainnet126",
            domains=("clipart", "painting", "real", "sketch"),
            count=126,
            size=96,
            lists="splits_mini",
        ),
        Folder("folder"),
        Features("folder-features", Folder("folder")),
    )
}
