"""The number of distinct images, from the singular values of a dense layer's update."""

import numpy as np
import pytest

import workbench as wb
from workbench.attack.span import find_span


def image_count(model, client, **training):
    observation = wb.client_update(model, model.init(), client, wb.ClientConfig(batch_size=4, **training))
    return find_span(model, observation).spectrum.image_count


@pytest.fixture(scope="module")
def client():
    return wb.load_dataset("glyphs").client(1, num_images=8)


@pytest.mark.parametrize("rate", [0.0005, 0.02])
def test_one_epoch_shows_the_count_whether_rounding_is_part_of_the_rank_or_not(client, rate):
    count = image_count(wb.models.femnist_cnn(), client, epochs=1, learning_rate=rate)
    assert (count.count, count.is_clear) == (8, True)


def test_an_image_that_is_there_twice_counts_once(client):
    images = np.concatenate([client.images[:7], client.images[:1]])
    labels = np.concatenate([client.labels[:7], client.labels[:1]])
    doubled = wb.ClientData(images, labels, client.class_names, client.normalization)
    count = image_count(wb.models.mlp(), doubled, epochs=1, learning_rate=0.02)
    assert (count.count, count.is_clear) == (7, True)


def test_many_steps_of_a_cnn_do_not_show_it(client):
    """There the rank is epochs times images, or all outputs that ever fire."""
    assert not image_count(wb.models.femnist_cnn(), client, epochs=4, learning_rate=0.02).is_clear


def test_a_layer_with_fewer_outputs_than_images_does_not_show_it(client):
    assert not image_count(wb.models.mlp(widths=(6,)), client, epochs=1, learning_rate=0.02).is_clear
