"""The bundled characters: one hand a writer, the same everywhere, and with FEMNIST's statistics."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workbench.data import load_dataset
from workbench.data.glyphs import CHARACTERS, FACES, FREQUENCIES, _writer_pictures, centre_lines, fill, ink, load_glyphs
from workbench.errors import ConfigError


@pytest.fixture(scope="module")
def writers():
    """All pictures of a sample of writers: images [W, n, 28, 28] and labels [W, n]."""
    sample = [load_glyphs().client(index, num_images=None) for index in range(0, 400, 20)]
    return np.stack([client.images[..., 0] for client in sample]), np.stack([client.labels for client in sample])


def test_is_a_stand_in_for_femnist():
    dataset = load_dataset("glyphs")
    assert dataset.image_shape == (28, 28, 1)
    assert "".join(dataset.class_names) == "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
    assert dataset.psnr_threshold == 20
    assert dataset.normalization.mean == (0.9642384386141873,)
    assert dataset.num_clients >= 200, "several hundred writers"
    assert dataset.client(0).num_images == 50


def test_every_writer_has_femnists_brightness_and_contrast(writers):
    images, _ = writers
    for what, values, low, high in [
        ("mean", images.mean(axis=(1, 2, 3)), 0.92, 0.98),
        ("standard deviation", images.std(axis=(1, 2, 3)), 0.12, 0.20),
    ]:
        assert low < values.min(), f"a writer's pixel {what} is {values.min():.3f}, below {low}"
        assert values.max() < high, f"a writer's pixel {what} is {values.max():.3f}, above {high}"


def test_ink_is_dark_on_white_and_stays_off_the_border(writers):
    images, _ = writers
    border = np.concatenate([images[..., 0, :], images[..., -1, :], images[..., 0], images[..., -1]], axis=-1)
    assert (border == 1).mean() > 0.999, "characters touch the border"
    assert (images.min(axis=(2, 3)) < 0.6).all(), "a picture has no ink"


def test_labels_are_spread_as_in_femnist(writers):
    _, labels = writers
    is_digit = labels < 10
    assert 0.3 < is_digit.mean() < 0.5, f"{is_digit.mean():.0%} digits; FEMNIST has about 38 %"
    present = [len(set(first.tolist())) for first in labels[:, :50]]
    assert 10 < min(present) <= max(present) < 45, f"{min(present)} to {max(present)} classes in 50 images"
    assert len(FREQUENCIES) == len(CHARACTERS)


def test_a_writer_has_one_hand(writers):
    images, labels = writers
    zeros = [own[label == 0][:6] for own, label in zip(images, labels, strict=True)]
    own = [((a - b) ** 2).mean() for of_one in zeros for i, a in enumerate(of_one) for b in of_one[:i]]
    others = [((a - b) ** 2).mean() for i, one in enumerate(zeros) for other in zeros[:i] for a in one for b in other]
    assert np.mean(own) < 0.8 * np.mean(others), "a writer's zeros differ from each other as much as from others' zeros"


def test_no_two_pictures_are_the_same(writers):
    images, _ = writers
    pictures = images.reshape(-1, 28 * 28)
    assert len(np.unique(pictures, axis=0)) == len(pictures)


@settings(max_examples=8, deadline=None)
@given(seed=st.integers(0, 2**40), writer=st.integers(0, 399))
def test_pictures_depend_on_seed_and_writer_alone(seed, writer):
    first = load_glyphs(seed).client(writer, num_images=20)
    _writer_pictures.cache_clear()
    load_glyphs(seed + 1).client(writer)
    again = load_glyphs(seed).client(writer, num_images=20)
    np.testing.assert_array_equal(first.images, again.images, err_msg="the same seed and writer, other pictures")
    np.testing.assert_array_equal(first.labels, again.labels)
    for other in (
        load_glyphs(seed + 1).client(writer, num_images=20),
        load_glyphs(seed).client((writer + 1) % 400, 20),
    ):
        assert (other.images != first.images).any(), "another seed or writer gave the same pictures"


def test_pictures_are_the_same_everywhere():
    client = load_glyphs().client(0)
    assert client.images.mean() == pytest.approx(0.96310, abs=2e-5), "client 0 is not drawn as on other machines"
    assert "".join(CHARACTERS[label] for label in client.labels[:12]) == "WhOT95W0e0SP"


@pytest.mark.parametrize("face", FACES)
def test_every_face_draws_all_characters(face):
    lines = centre_lines(face)
    assert len(lines) == 62
    for character, line in zip(CHARACTERS, lines, strict=True):
        assert len(line) > 25, f"{character} of {face} has almost no stroke left"
        low, high = line[:, 1].min(), line[:, 1].max()
        assert -0.5 < low < 0.3, f"{character} of {face} does not stand on the base line"
        assert 0.5 < high < 1.3, f"{character} of {face} is {high:.2f} capitals high"
    shapes = {line.round(6).tobytes() for line in lines}
    assert len(shapes) == 62, f"{face} draws two characters alike: does it have them all?"
    for character in "ij":
        heights = np.unique(lines[CHARACTERS.index(character)][:, 1])
        assert np.diff(heights).max() > 0.1, f"{character} of {face} has lost its dot"


def test_faces_share_the_writers():
    assert sum(FACES.values()) == pytest.approx(1)


def test_fill_follows_the_winding_rule():
    outer = np.array([[1, 1], [9, 1], [9, 9], [1, 9], [1, 1]], float)
    hole = np.array([[3, 3], [3, 7], [7, 7], [7, 3], [3, 3]], float)
    assert fill([outer, hole], 10, 10).sum() == 64 - 16, "a contour of the other direction is a hole"
    assert fill([outer, hole[::-1]], 10, 10).sum() == 64, "a contour of the same direction is not"


@given(row=st.floats(6, 22), column=st.floats(6, 22), radius=st.floats(1, 4))
def test_ink_covers_the_area_of_the_disc(row, column, radius):
    picture = ink(np.array([[row, column]]), np.array([radius])) / 255
    assert (1 - picture).sum() == pytest.approx(np.pi * radius**2, rel=0.12)
    where = np.indices(picture.shape) + 0.5
    middle = (where * (1 - picture)).sum(axis=(1, 2)) / (1 - picture).sum()
    np.testing.assert_allclose(middle, [row, column], atol=0.15, err_msg="the disc is not where it should be")


@pytest.mark.parametrize("seed", [-1, 0.5, "0", None])
def test_wrong_seed_gets_one_clear_sentence(seed):
    with pytest.raises(ConfigError, match=r"seed = .* must be a whole number of at least 0"):
        load_glyphs(seed)
