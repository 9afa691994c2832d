"""Where arrays are: with two devices, a session on the second one keeps everything there."""

import pytest

TWO_DEVICES = {"XLA_FLAGS": "--xla_force_host_platform_device_count=2"}


@pytest.mark.slow
def test_a_session_on_the_second_device_keeps_every_array_there(start_process, tmp_path):
    """It is stepped, run in the background, rewound, saved and loaded; a name of no device says which there are."""
    process = start_process(
        f"""
        import gc, jax

        first, second = jax.devices()
        # Copies between devices that nobody asked for would raise, in every thread.
        jax.config.update("jax_transfer_guard_device_to_device", "disallow")
        gc.collect()
        before = {{id(array) for array in jax.live_arrays()}}

        def check(where):
            gc.collect()
            session_arrays = [array for array in jax.live_arrays() if id(array) not in before]
            elsewhere = [array.shape for array in session_arrays if array.devices() != {{second}}]
            assert not elsewhere, f"{{where}}: arrays of shape {{elsewhere}} are not on cpu:1"
            print(where, len(session_arrays) > 10)

        try:
            make_session(device="cpu:2")
        except wb.ConfigError as error:
            print(error)
        session = make_session(device="cpu:1")
        assert session.device_name == "cpu:1" and "cpu:1" in repr(session)
        check("built")
        session.step(5)
        check("stepped")
        runner = wb.SessionRunner(session)
        runner.start()
        assert runner.wait(timeout=100)
        assert session.num_steps == 100
        check("run in the background, warm start and consensus included")
        session.rewind(33)
        fork = session.fork()
        fork.step(3)
        check("rewound and forked")
        del fork, runner
        session.save({str(tmp_path / "run")!r})
        session.labels
        check("labels")
        loaded = wb.AttackSession.load({str(tmp_path / "run")!r}, device=second)
        del session
        check("loaded")
        loaded.step(67)
        check("finished")
        here = wb.AttackSession.load({str(tmp_path / "run")!r}, device="cpu:0")
        here.step(67)
        print(np.array_equal(here.reconstruction().images, loaded.reconstruction().images))
        """,
        **TWO_DEVICES,
    )
    out, _ = process.finish()
    error, *lines = out.strip().split("\n")
    assert error == "device = 'cpu:2' is not there; JAX sees: cpu:0, cpu:1."
    assert len(lines) == 8, out
    assert all(line.endswith("True") for line in lines), out
