"""The page about custom networks: its code runs with the real libraries, and its list of operators is complete."""

import re
import subprocess
from pathlib import Path

import pytest

from workbench.training.torch_graph import OPERATORS

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/custom_networks.md").read_text()

TRAINS = """
client = wb.load_dataset("glyphs").client(0, num_images=3)
observation = wb.client_update(model, model.init(), client, wb.ClientConfig(epochs=1, batch_size=3))
session = wb.AttackSession(model, observation, wb.AttackConfig(steps=2))
session.step(2)
assert session.history.terms["update"].shape == (2,)
"""


def test_the_page_lists_every_operator():
    (listed,) = re.findall(r"operators are known.*?\n\n(.*?)\n\n", PAGE, re.DOTALL)
    assert set(re.findall(r"`(\w+)`", listed)) == set(OPERATORS)


@pytest.mark.slow
@pytest.mark.parametrize("library", ["flax", "equinox"])
def test_a_module_of_another_library_is_a_model(library, environment_with, tmp_path):
    """Neither library is a requirement."""
    python = environment_with(library)
    (code,) = [block for block in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL) if f"import {library}" in block]
    script = tmp_path / "network.py"
    script.write_text(code + TRAINS)
    # A convolution that stays slow would be a warning.
    subprocess.run([python, "-W", "error::UserWarning:__main__", script], check=True, cwd=ROOT)
