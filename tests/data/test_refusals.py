"""What the data package refuses: one sentence of ours that names the field."""

import numpy as np
import pytest

import workbench as wb
from workbench.data import Normalization
from workbench.errors import WorkbenchError

GREY = Normalization((0.5,), (0.5,))
IMAGES, LABELS = np.zeros((2, 4, 4, 1)), np.zeros(2, int)


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: wb.ClientData(IMAGES, LABELS, None, GREY), "class_names = None"),
        (lambda: wb.ClientData(IMAGES, LABELS, 5, GREY), "class_names = 5"),
        (lambda: wb.ClientData(IMAGES, LABELS, "ab", GREY), "class_names = 'ab'"),
        (lambda: wb.ClientData(IMAGES, LABELS, ("a", "b"), None), "normalization = None"),
        (lambda: wb.ClientData(IMAGES, LABELS, ("a", "b"), GREY, psnr_threshold="x"), "psnr_threshold = 'x'"),
        (lambda: wb.ClientData(IMAGES, LABELS, ("a", "b"), GREY, psnr_threshold=float("nan")), "psnr_threshold = nan"),
        (lambda: Normalization((), ()), "normalization.mean"),
        (lambda: wb.load_dataset("femnist", "x" * 5000), "path = 'xxx"),
        (lambda: wb.load_dataset("femnist", "~nobody-at-all/x"), "path = '~nobody"),
        (lambda: wb.load_dataset("glyphs", 5), "path = '5'"),
    ],
    ids=["no names", "a number", "a text", "no normalization", "text", "nan", "no channels", "long", "home", "bundled"],
)
def test_wrong_data_is_refused_in_one_sentence(make, field):
    with pytest.raises(WorkbenchError) as refused:
        make()
    assert field in str(refused.value), f"{field!r} is not named in: {refused.value}"
