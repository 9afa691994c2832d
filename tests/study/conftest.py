"""Studies small enough to run many times: a perceptron, a few images, a few steps."""

import functools

import pytest

from workbench import study
from workbench.config import AttackConfig, ClientConfig
from workbench.study.plan.plan import Place, Unit, digest_of_pictures
from workbench.study.plan.tables import plan_table

TINY = {"model": "mlp", "preset": "demo", "changes": {"steps": 3}}


@functools.cache
def glyphs_client(index, num_images):
    return Place().dataset("glyphs").client(index, num_images)


@pytest.fixture
def make_unit():
    """A unit that takes a moment; changes go to `Unit`."""

    def make(index=0, **changes):
        usual = {
            "task": "attack",
            "dataset": "glyphs",
            "pictures": digest_of_pictures([glyphs_client(index, 4)]),
            "clients": (index,),
            "num_images": 4,
            "network": "mlp",
            "client": ClientConfig(epochs=1, batch_size=4),
            "attack": AttackConfig(method="fedsgd", steps=2),
        }
        return Unit(**{**usual, **changes})

    return make


@pytest.fixture
def plan():
    """One setting of Table 1 with one method on a few clients."""

    def make(number=1, clients=2, methods=("fedsgd",), settings=("1x4x16",), **more):
        return plan_table(number, "glyphs", clients=clients, methods=methods, settings=settings, **{**TINY, **more})

    return make


@pytest.fixture
def run(tmp_path):
    """Run a plan to its end in this process."""

    def run_one(plan, store="study.sqlite", **options):
        return study.run_plan(plan, **{"store": tmp_path / store, "progress": "none", **options})

    return run_one
