"""Write the files of this folder: python tests/files/make.py

They were written once, by version 0.1.0, and stay as they are: tests/test_old_files.py loads them with whatever the
code has become since. Write new ones beside them, under new names, when a format changes.
"""

from pathlib import Path

import workbench as wb
from workbench.study import Store, plan_table, run_plan

HERE = Path(__file__).parent


def make_session() -> tuple[wb.AttackSession, wb.ClientData]:
    """Two phases, a consensus, ragged batches and steering within a few steps of a tiny network."""
    client = wb.load_dataset("glyphs").client(0, num_images=3)
    model = wb.models.mlp(widths=(4,))
    observation = wb.client_update(model, model.init(), client, wb.ClientConfig(epochs=2, batch_size=2))
    config = wb.AttackConfig(
        steps=9, warm_start_steps=3, consensus_weight=3.0, consensus_start=1, consensus_every=2, combine="median"
    )
    return wb.AttackSession(model, observation, config, label_counts=client.label_counts, snapshot_every=2), client


def make_plan():
    return plan_table(
        1,
        "glyphs",
        clients=2,
        methods=["ours_prior", "fedsgd"],
        settings=["1x4x16"],
        preset="demo",
        changes={"steps": 2, "prior_weight": 1000.0},
        model="mlp",
    )


if __name__ == "__main__":
    session, client = make_session()
    session.step(2)
    session.steer(tv_weight=0.01)
    for _ in range(6):
        session.step()
    session.save(HERE / "checkpoint.safetensors")
    session.record(HERE / "attack.recording", client, snapshots=4, epoch_snapshots=2)
    wb.save_weights(HERE / "weights.safetensors", session.observation.client_weights)
    store = HERE / "study.sqlite"
    run_plan(make_plan(), store=store, out=HERE / "study.jsonl", progress="none")
    with Store(store) as kept:
        kept._connection.execute("PRAGMA journal_mode = DELETE")
