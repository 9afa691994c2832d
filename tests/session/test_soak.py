"""A long run, as a panel drives it: memory must not grow with the steps."""

import time

import psutil
import pytest

import workbench as wb

STEPS, SETTLED = 5000, 200


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_memory_does_not_grow_with_the_steps():
    client, model = wb.load_dataset("glyphs").client(0, num_images=16), wb.models.femnist_cnn()
    observation = wb.client_update(model, model.init(), client, wb.ClientConfig(epochs=4, batch_size=4))
    config = wb.AttackConfig.preset("demo", "glyphs")
    session = wb.AttackSession(model, observation, config, label_counts=client.label_counts)
    process, resident = psutil.Process(), {}

    def look(snapshot):
        if snapshot.step % 5 == 0:
            session.reconstruction(snapshot)
        if snapshot.step % 50 == 0:
            session.steer(tv_weight=1e-6 * snapshot.step)
            assert len(session.history.loss) == snapshot.step
            resident[snapshot.step] = process.memory_info().rss / 1e6

    runner = wb.SessionRunner(session)
    runner.add_listener(look)
    started = time.monotonic()
    runner.start(steps=STEPS)
    assert runner.wait(timeout=3500), f"only {session.num_steps} steps were made"
    assert runner.listener_error is None
    seconds = time.monotonic() - started
    most = max(value for step, value in resident.items() if step > SETTLED)
    grown = most - resident[SETTLED]
    print(
        f"\n{STEPS} steps in {seconds:.0f} s; {resident[SETTLED]:.0f} MB after {SETTLED}, then at most {grown:+.0f} MB"
    )
    assert session.num_steps == STEPS
    assert grown < 50, f"resident memory grew by {grown:.0f} MB: {resident}"
