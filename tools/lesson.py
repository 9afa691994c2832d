"""Write assets/lesson.html, the lesson that the panel opens on as a page that plays: python tools/lesson.py

Run it again after a change of the picture grid's script, which the page contains.
"""

from pathlib import Path

import workbench as wb
from workbench.views.grid.page import write_page
from workbench.views.panel.scenarios import FIRST

FILE = Path(__file__).parents[1] / "assets" / "lesson.html"
TITLE = "Images change places between epochs: matching and averaging"
EVERY = 4  # steps between two moments; every moment has the images of all epochs


def main() -> None:
    model, [client] = FIRST.target.load()
    observation = FIRST.target.observe(model, [client])
    config = FIRST.settings.config
    session = wb.AttackSession(
        model, observation, config, label_counts=client.label_counts, seed=FIRST.target.seed, snapshot_every=EVERY
    )
    for _ in range(session.total_steps):
        session.step()
    moments = len(session.history.snapshot_steps)
    recording = wb.Recording.of(session, client, snapshots=moments, epoch_snapshots=moments)
    write_page(FILE, recording, TITLE)
    print(f"Wrote {FILE} ({FILE.stat().st_size / 1e6:.2f} MB): {moments} moments, {recording.reconstruction().score}.")


if __name__ == "__main__":
    main()
