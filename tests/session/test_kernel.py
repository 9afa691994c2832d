"""The runner inside a real Jupyter kernel: cells go on being answered while the attack runs."""

import textwrap
import time

import pytest
from jupyter_client.manager import start_new_kernel


@pytest.fixture(scope="module")
def execute(prelude):
    """Run code in one kernel; its printed text and how long the answer took. An error in the cell fails the test."""
    manager, client = start_new_kernel()

    def run(code, timeout=120):
        printed = []

        def keep(message):
            if message["msg_type"] == "stream" and message["content"]["name"] == "stdout":
                printed.append(message["content"]["text"])

        started = time.monotonic()
        reply = client.execute_interactive(textwrap.dedent(code), timeout=timeout, output_hook=keep)["content"]
        assert reply["status"] == "ok", "\n".join(reply.get("traceback", []))
        return "".join(printed).strip(), time.monotonic() - started

    try:
        run("import sys; modules_before = set(sys.modules)")
        run("import workbench; imported = set(sys.modules) - modules_before")
        run(prelude)
        yield run
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


def test_importing_the_package_in_a_kernel_imports_no_widget_code(execute):
    printed, _ = execute("print([name for name in ('ipywidgets', 'matplotlib') if name in imported])")
    assert printed == "[]", f"importing workbench in a kernel brought {printed}"


def test_cells_are_answered_while_the_runner_works(execute):
    execute("session = make_session(); session.step(30); runner = wb.SessionRunner(session); runner.start(steps=10**6)")
    answers = [execute("print(session.num_steps)") for _ in range(20)]
    steps = [int(printed) for printed, _ in answers]
    seconds = [taken for _, taken in answers]
    assert steps == sorted(steps)
    assert steps[-1] > steps[0], "the runner stood still while cells were answered"
    assert max(seconds) < 5, f"an answer took {max(seconds):.1f} s"
    execute("session.steer(tv_weight=0.5); runner.pause()")
    assert execute("print(runner.wait_until_paused(30), runner.state.name)")[0] == "True PAUSED"
    held, _ = execute("print(session.num_steps)")
    assert execute("print(session.num_steps)")[0] == held
    execute("runner.resume()")
    assert execute("print(len(session.history.steering))")[0] == "1"
    execute("runner.stop()")
    assert execute("print(runner.wait(30), runner.state.name, session.num_steps > 30)")[0] == "True STOPPED True"


def test_run_shows_its_progress_and_an_interrupt_stops_it(execute):
    printed, _ = execute("""
        timer = threading.Timer(1.0, lambda: os.kill(os.getpid(), signal.SIGINT))
        session = make_session()
        session.step(30)
        timer.start()
        session.run(steps=10**6)
        print(30 < session.num_steps < 10**6, session.outcome.name)
        session.step()
        """)
    assert printed in ("True FINISHED", "True IN_PROGRESS")
