"""Two networks, a client of each kind, what the federation's network says about images, quick attacks, Ctrl-C."""

import itertools
import os
import signal

import jax.numpy as jnp
import numpy as np
import pytest

import workbench as wb

SETTINGS = {"epochs": 1, "batch_size": 5, "learning_rate": 0.004}


class Case:
    """A client of twelve images that trains a network, and its stand-ins."""

    def __init__(self, model):
        glyphs = wb.load_dataset("glyphs")
        self.model, self.weights = model, model.init(0)
        self.client = glyphs.client(3, num_images=12)
        self.stand_ins = glyphs.client(26, num_images=50).images

    def update(self, **settings):
        config = wb.ClientConfig(**{**SETTINGS, **settings})
        return wb.client_update_with_secrets(self.model, self.weights, self.client, config)

    @property
    def probe(self):
        inputs = jnp.asarray(self.client.normalization.normalize(self.stand_ins))
        return self.stand_ins, np.asarray(self.model.apply(self.weights, inputs))

    @property
    def rehearsal(self):
        return self.client.images, self.client.labels, self.update()[1].order


@pytest.fixture(scope="session")
def cnn():
    return Case(wb.models.femnist_cnn())


@pytest.fixture(scope="session")
def dense():
    return Case(wb.models.mlp(widths=(100,)))


@pytest.fixture(scope="package")
def quick():
    """Settings with the span, with one method to compile, and without the short attack that refines labels."""
    changes = {"label_method": "bias", "noisy_method": None, "warm_start_steps": 0, "restart_every": 0}
    return wb.AttackConfig.preset("best", steps=20, span_rise=10, **changes)


@pytest.fixture(scope="package")
def dataset():
    return wb.load_dataset("glyphs")


@pytest.fixture
def stop_at(monkeypatch):
    """A function that makes Ctrl-C happen when a session makes its n-th call of step."""
    original = wb.AttackSession.step

    def arm(number):
        calls = itertools.count(1)

        def step(session, n=1):
            if next(calls) == number:
                os.kill(os.getpid(), signal.SIGINT)
            original(session, n)

        monkeypatch.setattr(wb.AttackSession, "step", step)

    return arm
