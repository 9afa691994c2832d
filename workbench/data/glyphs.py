"""Bundled stand-in for FEMNIST: hundreds of synthetic writers, each with a consistent handwriting.

A writer follows the centre lines of a typeface with a round pen. The centre lines come from the font outlines that
matplotlib ships, and every image is drawn and supersampled here with array arithmetic alone. No renderer, hinting or
installed font is involved, so the images are the same on every machine.
"""

from __future__ import annotations

import string
from dataclasses import dataclass
from functools import lru_cache, partial

import numpy as np
from numpy.typing import NDArray

from workbench.data.dataset import FEMNIST_NORMALIZATION, Dataset
from workbench.errors import check_count

__all__ = ["CHARACTERS", "IMAGES_PER_WRITER", "NUM_WRITERS", "load_glyphs"]

# The 62 classes of FEMNIST, in label order.
CHARACTERS = string.digits + string.ascii_uppercase + string.ascii_lowercase

NUM_WRITERS = 400
IMAGES_PER_WRITER = 200

SIDE = 28
# Samples per pixel side: 17 grey levels along an edge.
SUPERSAMPLING = 4

# Typefaces that matplotlib ships with all 62 characters, and the share of writers that use each. The plain ones are
# closest to handwriting and have the largest shares.
FACES = {
    "DejaVuSans": 0.26,
    "cmss10": 0.26,
    "STIXGeneral": 0.12,
    "DejaVuSansMono": 0.08,
    "DejaVuSerif": 0.07,
    "cmr10": 0.07,
    "cmtt10": 0.07,
    "cmb10": 0.07,
}

# How often FEMNIST's writers write each character, per thousand: forms full of digits, and English text.
FREQUENCIES = (
    *(38,) * 10,
    *(11, 5, 20, 7, 10, 16, 3, 4, 22, 6, 3, 7, 17, 17, 51, 16, 3, 8, 41, 19, 23, 7, 7, 3, 8, 3),
    *(19, 9, 3, 20, 49, 3, 6, 17, 3, 2, 3, 30, 3, 21, 3, 3, 4, 26, 3, 38, 3, 3, 3, 3, 3, 3),
)

# Pixels per em for finding the centre lines: fine enough for the largest handwriting at the supersampling above.
EM = 80

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


def load_glyphs(seed: int = 0) -> Dataset:
    """The bundled hand-drawn characters: 28x28x1, 62 classes, ink (0) on white (1).

    Args:
        seed: of the writers.

    >>> load_glyphs().client(0)
    ClientData(glyphs, client 0: 50 images of 28x28x1, 24 classes present)
    """
    return Dataset(
        name="glyphs",
        image_shape=(SIDE, SIDE, 1),
        class_names=tuple(CHARACTERS),
        normalization=FEMNIST_NORMALIZATION,
        psnr_threshold=20.0,
        num_clients=NUM_WRITERS,
        pictures=partial(_writer_pictures, check_count("seed", seed, minimum=0)),
    )


@lru_cache(maxsize=128)
def _writer_pictures(seed: int, writer: int) -> tuple[NDArray[np.uint8], NDArray[np.int32]]:
    """All data of one writer: images [n, H, W, 1] and labels [n]."""
    rng = np.random.default_rng([seed, writer])
    hand = Hand.draw(rng)
    # A writer's version of a character is its centre line, bent the same way in every image.
    forms = [line + bend(line, hand.wobble, rng) for line in centre_lines(hand.face)]
    frequencies = np.array(FREQUENCIES) / sum(FREQUENCIES)
    labels = rng.choice(len(CHARACTERS), IMAGES_PER_WRITER, p=frequencies)
    images = np.stack([hand.write(forms[label], rng) for label in labels])
    return images[..., None], labels.astype(np.int32)


@dataclass(frozen=True)
class Hand:
    """The handwriting of one writer; lengths are in pixels unless stated otherwise.

    Attributes:
        face: the typeface that the writer follows.
        height: of a capital.
        width: of a character, relative to its width in the typeface.
        slant: sideways shift per height.
        tilt: angle of the base line, in radians.
        pen: width of the stroke.
        pressure: relative change of that width along a stroke.
        wobble: unsteadiness, in capital heights.
        drift: standard deviation of a character's offset from the centre of the image.
    """

    face: str
    height: float
    width: float
    slant: float
    tilt: float
    pen: float
    pressure: float
    wobble: float
    drift: float

    @classmethod
    def draw(cls, rng: np.random.Generator) -> Hand:
        """A random writer."""
        height = rng.uniform(8.5, 11.5)
        return cls(
            face=str(rng.choice(list(FACES), p=list(FACES.values()))),
            height=height,
            width=rng.uniform(0.75, 1.2),
            slant=rng.normal(0.25, 0.2),
            tilt=rng.normal(0.0, 0.06),
            # Large letters have long strokes; a finer pen keeps the amount of ink in FEMNIST's range.
            pen=rng.uniform(11.5, 14.5) / height,
            pressure=rng.uniform(0.05, 0.15),
            wobble=rng.uniform(0.045, 0.085),
            drift=rng.uniform(0.2, 0.6),
        )

    def write(self, form: Floats, rng: np.random.Generator) -> NDArray[np.uint8]:
        """One image [H, W] of a character from its centre line [n, 2], slightly different every time."""
        x, y = (form + bend(form, self.wobble, rng)).T
        x = self.width * x + (self.slant + rng.normal(0, 0.04)) * y
        angle = self.tilt + rng.normal(0, 0.04)
        x, y = x * np.cos(angle) - y * np.sin(angle), x * np.sin(angle) + y * np.cos(angle)
        points = np.stack([-y, x], axis=1) * self.height * rng.normal(1, 0.04)
        middle = (points.min(axis=0) + points.max(axis=0)) / 2
        points += SIDE / 2 - middle + rng.normal(0, self.drift, 2)
        noise = (bend(form, self.pressure, rng)[:, 0] + rng.normal(0, 0.05, len(form))).clip(min=-0.5)
        return ink(points, 0.5 * self.pen * (1 + noise))


def bend(points: Floats, size: float, rng: np.random.Generator) -> Floats:
    """A smooth random field [n, 2] of the given size at points [n, 2], which varies slowly along a stroke."""
    num_waves = 4
    frequencies = rng.uniform(-0.5, 0.5, (2, num_waves))
    phases = rng.uniform(0, 2 * np.pi, num_waves)
    amplitudes = rng.normal(0, size * np.sqrt(2 / num_waves), (num_waves, 2))
    return np.sin(2 * np.pi * points @ frequencies + phases) @ amplitudes


def ink(points: Floats, radii: Floats) -> NDArray[np.uint8]:
    """A white image [H, W] with black discs at points [n, 2] (row, column) of the given radii [n], all in pixels."""
    centres = points.clip(0, SIDE) * SUPERSAMPLING
    radii = radii * SUPERSAMPLING
    reach = int(np.ceil(radii.max()))
    offsets = np.arange(-reach, reach + 1)
    cells = np.floor(centres).astype(np.intp)[:, :, None] + offsets
    rows, columns = np.moveaxis((cells + 0.5 - centres[:, :, None]) ** 2, 1, 0)
    disc, row, column = np.nonzero(rows[:, :, None] + columns[:, None, :] <= (radii**2)[:, None, None])
    fine = np.ones((2 * reach + SIDE * SUPERSAMPLING + 1,) * 2)
    fine[cells[disc, 0, row] + reach, cells[disc, 1, column] + reach] = 0
    fine = fine[reach : -reach - 1, reach : -reach - 1]
    coarse = fine.reshape(SIDE, SUPERSAMPLING, SIDE, SUPERSAMPLING).mean(axis=(1, 3))
    return np.rint(255 * coarse).astype(np.uint8)


@lru_cache(maxsize=len(FACES))
def centre_lines(face: str) -> tuple[Floats, ...]:
    """The centre lines of the 62 characters: points [n, 2], x and y, scaled so that a capital has height 1."""
    # matplotlib is slow to import, and only this function needs it.
    import matplotlib as mpl
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import TextPath

    font = FontProperties(fname=f"{mpl.get_data_path()}/fonts/ttf/{face}.ttf")
    outlines = [TextPath((0, 0), character, size=EM, prop=font).to_polygons() for character in CHARACTERS]
    characters = [[np.asarray(polygon, np.float64) for polygon in outline] for outline in outlines]
    vertices = np.concatenate([polygon for polygons in characters for polygon in polygons])
    origin = np.floor(vertices.min(axis=0)) - 1
    width, height = (np.ceil(vertices.max(axis=0)) + 1 - origin).astype(int).tolist()
    shapes = np.stack([fill([polygon - origin for polygon in polygons], height, width) for polygons in characters])
    capital = max(polygon[:, 1].max() for polygon in characters[CHARACTERS.index("H")])
    lines = [np.argwhere(line)[:, ::-1] + 0.5 + origin for line in strokes(shapes)]
    return tuple((line - [line[:, 0].mean(), 0]) / capital for line in lines)


def fill(polygons: list[Floats], height: int, width: int) -> Bools:
    """Which cells of a grid [height, width] have their centre inside closed polygons [n, 2] (x, y; nonzero winding)."""
    start = np.concatenate([polygon[:-1] for polygon in polygons])
    stop = np.concatenate([polygon[1:] for polygon in polygons])
    y = np.arange(height) + 0.5
    is_upward = (start[:, 1, None] <= y) & (y < stop[:, 1, None])
    is_downward = (stop[:, 1, None] <= y) & (y < start[:, 1, None])
    edge, row = np.nonzero(is_upward | is_downward)
    (x0, y0), (x1, y1) = start[edge].T, stop[edge].T
    crossing = x0 + (y[row] - y0) * (x1 - x0) / (y1 - y0)
    winding = np.zeros((height, width + 1), np.int64)
    np.add.at(winding, (row, np.ceil(crossing - 0.5).astype(np.intp)), np.where(is_upward[edge, row], 1, -1))
    return winding.cumsum(axis=1)[:, :width] != 0


def strokes(shapes: Bools) -> Bools:
    """The centre lines, one cell wide, of shapes [n, H, W] whose border is empty."""
    from scipy.ndimage import distance_transform_cdt

    depth = np.stack([distance_transform_cdt(shape, "chessboard") for shape in shapes])
    lines, before = shapes, ~shapes
    while (lines != before).any():
        before = lines
        for is_removable in THINNING:
            lines = lines & ~is_removable[neighbours(lines)]
    # Thinning leaves a fork at every blunt end of a stroke, and a typeface may have serifs: both are shallow.
    shallow = depth < np.median(depth[lines])
    for _ in range(EM // 10):
        lines = lines & ~(IS_END[neighbours(lines)] & shallow)
    return lines


def neighbours(shapes: Bools) -> NDArray[np.uint8]:
    """The 8 neighbours of each cell as the bits of a byte, clockwise from the one above."""
    from scipy.ndimage import correlate

    bits = np.array([[[1 << 7, 1 << 0, 1 << 1], [1 << 6, 0, 1 << 2], [1 << 5, 1 << 4, 1 << 3]]])
    return correlate(shapes.astype(np.uint8), bits, mode="wrap")


def _thinning_rules() -> tuple[tuple[Bools, Bools], Bools]:
    """For each byte of neighbours: may either pass of thinning (Zhang and Suen, 1984) remove the cell; is it an end."""
    near = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little").astype(bool).T
    num_near = near.sum(axis=0)
    is_one_run = (near & ~np.roll(near, 1, axis=0)).sum(axis=0) == 1
    up, right, down, left = near[::2]
    is_edge = is_one_run & (num_near >= 2) & (num_near <= 6)
    first = is_edge & ~(up & right & down) & ~(right & down & left)
    second = is_edge & ~(up & right & left) & ~(up & down & left)
    return (first, second), is_one_run & (num_near <= 2)


THINNING, IS_END = _thinning_rules()
