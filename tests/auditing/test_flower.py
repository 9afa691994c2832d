"""The recorder for Flower: with objects of Flower's shape here, and with flwr itself in an environment of its own."""

import json
import os
import runpy
import shutil
import socket
import subprocess
import sys
import time
import venv
from dataclasses import dataclass, field
from pathlib import Path

import jax
import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import save_file

import workbench as wb
from workbench.attack.labels import estimate_labels
from workbench.auditing import flower
from workbench.auditing.flower import record
from workbench.files.audit import read_audit_file

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent / "flower"
FEDERATION = runpy.run_path(str(HERE / "federation.py"), run_name="federation")
TRAINING = FEDERATION["TRAINING"]
BYTES = runpy.run_path(str(Path(__file__).parents[1] / "federated" / "test_updates.py"))["npy"]


# As Flower's classic interface defines them.
@dataclass
class Parameters:
    tensors: list[bytes]


@dataclass
class Proxy:
    cid: str


@dataclass
class FitIns:
    parameters: Parameters
    config: dict


@dataclass
class FitRes:
    parameters: Parameters
    num_examples: int
    metrics: dict = field(default_factory=dict)


def parameters(weights):
    return Parameters([BYTES(array) for array in weights])


class Strategy:
    """Two clients a round; remembers what it was given."""

    def __init__(self):
        self.given = []

    def configure_fit(self, server_round, parameters, client_manager):
        return [(Proxy(f"client {number}"), FitIns(parameters, dict(TRAINING))) for number in range(2)]

    def aggregate_fit(self, server_round, results, failures):
        self.given.append((server_round, results, failures))
        return results[0][1].parameters, {}


def run_rounds(strategy, rounds=2):
    """What Flower's server does; returns what the strategy decided."""
    sent = parameters(FEDERATION["first_weights"]())
    for server_round in range(1, rounds + 1):
        results = []
        for proxy, instructions in strategy.configure_fit(server_round, sent, None):
            number = int(proxy.cid[-1])
            weights = FEDERATION["train"](arrays_of(instructions.parameters), number, **instructions.config)
            counts = {"loss": float("nan"), "number": number, "note": b"bytes"}
            results.append((proxy, FitRes(parameters(weights), len(FEDERATION["data_of"](number)[1]), counts)))
        sent, _ = strategy.aggregate_fit(server_round, results, [])
    return sent


def arrays_of(message):
    return [flower._array(data) for data in message.tensors]


def network():
    shape, hidden, classes = (FEDERATION[name] for name in ("IMAGE_SHAPE", "NUM_HIDDEN", "NUM_CLASSES"))
    return wb.models.mlp(image_shape=shape, widths=(hidden,), num_classes=classes)


def assert_opened(path):
    """Every client's labels are found, and its training repeated on its own images gives its update."""
    model, training, recorded = network(), wb.ClientConfig(**TRAINING), read_audit_file(path)
    assert recorded.server_round == 2
    assert recorded.strategy in ("Strategy", "FedAvg")
    assert sorted(client.metrics["number"] for client in recorded.clients) == [0, 1]
    for client in recorded.clients:
        assert TRAINING.items() <= client.config.items()
        number = client.metrics["number"]
        images, labels = FEDERATION["data_of"](number)
        seen = wb.Observation.from_audit_file(
            model, path, training, client=client.id, normalization=FEDERATION["NORMALIZATION"]
        )
        counts = np.bincount(labels, minlength=FEDERATION["NUM_CLASSES"])
        np.testing.assert_array_equal(estimate_labels(model, seen, "bias").whole, counts)
        rng = np.random.default_rng(100 + number)
        order = np.stack([rng.permutation(len(labels)) for _ in range(TRAINING["epochs"])])
        checks = wb.check(model, seen, rehearsal=(images, labels, order))
        assert checks.is_ok, f"client {number}: {checks}"


@pytest.fixture(scope="module")
def recording(tmp_path_factory):
    path = tmp_path_factory.mktemp("recording") / "round.audit"
    run_rounds(record(Strategy(), path, server_round=2))
    return path


def test_a_recorded_round_is_opened(recording):
    assert_opened(recording)


def test_recording_changes_nothing_that_the_strategy_sees(tmp_path):
    plain, recorded = Strategy(), record(Strategy(), tmp_path / "round.audit", server_round=1)
    first, second = (arrays_of(run_rounds(strategy)) for strategy in (plain, recorded))
    for ours, theirs in zip(first, second, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert [given[0] for given in recorded.given] == [1, 2]
    assert isinstance(recorded, Strategy)


def test_what_every_client_gets_is_stored_once(recording):
    with safe_open(recording, framework="numpy") as file:
        assert len(file.keys()) == 3 * 4, "one set of four arrays was sent, two were received"
    clients = read_audit_file(recording).clients
    assert clients[0].hashes[0] == clients[1].hashes[0]
    assert clients[0].hashes[1] != clients[1].hashes[1]


def test_values_that_json_cannot_hold_become_text(recording):
    metrics = read_audit_file(recording).clients[0].metrics
    assert (metrics["loss"], metrics["note"]) == ("nan", "b'bytes'")


@pytest.mark.parametrize(
    ("clients", "expected"),
    [(None, ["client 0", "client 1"]), (1, ["client 0"]), (["client 1", "nobody"], ["client 1"])],
)
def test_only_chosen_clients_are_recorded(tmp_path, clients, expected):
    path = tmp_path / "round.audit"
    run_rounds(record(Strategy(), path, clients=clients))
    assert [client.id for client in read_audit_file(path).clients] == expected


def test_several_rounds_are_recorded_by_wrapping_again(tmp_path):
    strategy = record(record(Strategy(), tmp_path / "1.audit", server_round=1), tmp_path / "2.audit", server_round=2)
    run_rounds(strategy)
    assert [read_audit_file(tmp_path / f"{number}.audit").server_round for number in (1, 2)] == [1, 2]


def test_a_failing_recorder_does_not_stop_the_federation(tmp_path, caplog):
    (tmp_path / "file").write_text("no folder")
    assert run_rounds(record(Strategy(), tmp_path / "file" / "round.audit")) is not None
    assert "could not be recorded" in caplog.text
    caplog.clear()
    run_rounds(record(Strategy(), tmp_path / "round.audit", clients=["nobody"]))
    assert "none of the chosen clients answered in round 1" in caplog.text
    assert not (tmp_path / "round.audit").exists()


def test_arguments_may_be_given_by_name_and_messages_by_a_generator(tmp_path):
    class Named(Strategy):
        def configure_fit(self, server_round, parameters, client_manager):
            yield from super().configure_fit(server_round, parameters, client_manager)

    strategy = record(Named(), tmp_path / "round.audit")
    weights = parameters(FEDERATION["first_weights"]())
    sent = strategy.configure_fit(server_round=1, parameters=weights, client_manager=None)
    results = ((proxy, FitRes(weights, 3)) for proxy, _ in sent)
    strategy.aggregate_fit(server_round=1, failures=[], results=results)
    assert [client.num_images for client in read_audit_file(tmp_path / "round.audit").clients] == [3, 3]
    assert len(strategy.given[0][1]) == 2, "the strategy gets the results that the recorder has read"


@pytest.mark.parametrize("by_name", [True, False])
def test_a_strategy_may_take_any_arguments(tmp_path, by_name):
    class Any(Strategy):
        def configure_fit(self, *args, **kwargs):
            return super().configure_fit(*args, **kwargs)

        def aggregate_fit(self, *args, **kwargs):
            return super().aggregate_fit(*args, **kwargs)

    strategy, weights = record(Any(), tmp_path / "round.audit"), parameters(FEDERATION["first_weights"]())
    first = {"server_round": 1, "parameters": weights, "client_manager": None}
    sent = strategy.configure_fit(**first) if by_name else strategy.configure_fit(*first.values())
    last = {"server_round": 1, "results": [(proxy, FitRes(weights, 3)) for proxy, _ in sent], "failures": []}
    strategy.aggregate_fit(**last) if by_name else strategy.aggregate_fit(*last.values())
    assert len(read_audit_file(tmp_path / "round.audit").clients) == 2


def test_a_round_without_messages_is_logged_and_goes_on(tmp_path, caplog):
    class Silent(Strategy):
        def configure_fit(self, server_round, parameters, client_manager):
            return None

        def aggregate_fit(self, server_round, results, failures):
            return results

    strategy = record(Silent(), tmp_path / "round.audit")
    assert strategy.configure_fit(1, None, None) is None
    assert strategy.aggregate_fit(1, None, []) is None
    assert "could not be recorded" in caplog.text
    with pytest.raises(TypeError, match="missing 3 required"):
        strategy.configure_fit()


def test_a_strategy_with_slots_or_frozen_is_recorded(tmp_path):
    class Slots:
        __slots__ = ("given",)

        configure_fit, aggregate_fit = Strategy.configure_fit, Strategy.aggregate_fit

        def __init__(self):
            self.given = []

    @dataclass(frozen=True)
    class Frozen:
        given: list = field(default_factory=list)
        configure_fit, aggregate_fit = Strategy.configure_fit, Strategy.aggregate_fit

    for kind in (Slots, Frozen):
        path = tmp_path / f"{kind.__name__}.audit"
        strategy = record(kind(), path)
        assert isinstance(strategy, kind)
        run_rounds(strategy, rounds=1)
        assert len(strategy.given) == 1
        assert read_audit_file(path).strategy == kind.__name__
        assert kind.configure_fit is Strategy.configure_fit, "other strategies of this class are not recorded"


def test_what_is_no_strategy_is_refused(tmp_path):
    with pytest.raises(TypeError, match="strategy = dict has none of Flower's pairs of methods"):
        record({}, tmp_path / "round.audit")


def opened(path, **options):
    options = {"normalization": FEDERATION["NORMALIZATION"], **options}
    return wb.Observation.from_audit_file(network(), path, wb.ClientConfig(**TRAINING), **options)


def test_clients_are_chosen_by_id_or_place(recording):
    assert opened(recording, client=1).num_images == opened(recording, client="client 1").num_images == 10
    assert opened(recording, num_images=7).num_images == 7
    for unknown in ("nobody", 2, -1, None):
        with pytest.raises(wb.DataError, match="was not recorded; give a place from 0 to 1 or one of the ids"):
            opened(recording, client=unknown)


def test_the_bundled_round_holds_the_bundled_update():
    folder, training = ROOT / "assets" / "update", wb.ClientConfig(3, 4, 0.01, momentum=0.9)
    model, half = wb.models.from_torch_export(folder / "network.pt2"), ((0.5,) * 3,) * 2
    recorded = wb.Observation.from_audit_file(model, folder / "round.audit", training, normalization=half)
    files = [folder / f"{name}.safetensors" for name in ("before", "after")]
    seen = wb.Observation.from_updates(model, *files, training, num_images=8, normalization=half)
    assert recorded.num_images == 8
    for name in ("server_weights", "client_weights"):
        jax.tree.map(np.testing.assert_array_equal, getattr(recorded, name), getattr(seen, name))


def test_another_training_than_the_server_configured_is_a_warning(recording, tmp_path):
    with pytest.warns(UserWarning, match="the server sent 'client 0' epochs = 2; training has epochs = 3"):
        wb.Observation.from_audit_file(
            network(),
            recording,
            wb.ClientConfig(**{**TRAINING, "epochs": 3}),
            normalization=FEDERATION["NORMALIZATION"],
        )
    settings, tensors = content_of(recording)
    settings["clients"][0]["config"] = {"lr": 0.5, "unknown": 1}
    flower._write(tmp_path / "round.audit", settings, tensors)
    with pytest.warns(UserWarning, match="lr = 0.5; training has learning_rate = 0.02") as warned:
        opened(tmp_path / "round.audit")
    assert len(warned) == 1


def test_damaged_and_hostile_files_get_our_error(recording, tmp_path):
    path, content = tmp_path / "round.audit", recording.read_bytes()
    for length in (0, 7, 8, 100, len(content) // 2, len(content) - 1):
        path.write_bytes(content[:length])
        with pytest.raises(wb.CheckpointError, match=r"round\.audit"):
            opened(path)
    for place in range(0, len(content), 97):
        path.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
        with pytest.raises(wb.CheckpointError, match=r"round\.audit"):
            opened(path)
    with pytest.raises(wb.CheckpointError, match="does not exist"):
        opened(tmp_path / "nowhere")
    save_file({"a": np.zeros(3)}, path)
    with pytest.raises(wb.CheckpointError, match="is not a saved audit file"):
        opened(path)


def content_of(path):
    with safe_open(path, framework="numpy") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dict
        return json.loads(file.metadata()["settings"]), tensors


@pytest.mark.parametrize("change", [
    {"clients": []},
    {"clients": [{}]},
    {"clients": 3},
    {"sets": {"abc": 0}},
    {"layouts": [["a"] * 5]},
    {"server_round": -1},
])  # fmt: skip
def test_a_consistent_checksum_is_not_enough(recording, tmp_path, change):
    """A file that was made to deceive has the right checksum."""
    settings, tensors = content_of(recording)
    path = tmp_path / "round.audit"
    flower._write(path, {**settings, **change}, tensors)
    with pytest.raises(
        wb.CheckpointError, match=r"round\.audit(: it has no clients| does not hold a consistent audit file)"
    ):
        opened(path)


def test_arrays_that_were_exchanged_do_not_match_their_hash(recording, tmp_path):
    settings, tensors = content_of(recording)
    flower._write(tmp_path / "round.audit", settings, {name: array + 1 for name, array in tensors.items()})
    with pytest.raises(wb.CheckpointError, match="do not match their SHA-256"):
        opened(tmp_path / "round.audit")


def test_the_copy_for_a_server_needs_only_numpy_and_safetensors(tmp_path):
    """Printed as the documentation says, imported where neither the workbench nor JAX nor flwr can be found."""
    run = [sys.executable, "-m", "workbench.auditing.flower"]
    copy = subprocess.run(run, capture_output=True, text=True, check=True, timeout=120)
    assert copy.stderr == ""
    assert copy.stdout == Path(flower.__file__).read_text()
    (tmp_path / "recorder.py").write_text(copy.stdout)
    code = (
        "import sys; sys.modules.update(dict.fromkeys(('workbench', 'jax', 'flwr', 'scipy')));"
        "import recorder; print(recorder.record.__name__)"
    )
    run = [sys.executable, "-c", code]
    done = subprocess.run(run, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout == "record\n", done.stderr


@pytest.fixture(scope="session")
def flower_python(tmp_path_factory):
    """The Python of an environment with flwr, in versions of its own."""
    folder = tmp_path_factory.mktemp("flower") / "venv"
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python"
    constraints = HERE / "constraints.txt"
    install = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "flwr", "safetensors"]
    done = subprocess.run([*install, "-c", constraints], capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    return python


@pytest.fixture
def federation(flower_python, tmp_path):
    """Starts a part of the federation; every process that is left at the end is killed."""
    shutil.copy(HERE / "federation.py", tmp_path)
    shutil.copy(flower.__file__, tmp_path / "recorder.py")
    # The federation must not find the workbench, and tells nobody that it runs.
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "JAX"))}
    environment |= {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_HOME": str(tmp_path / "home")}
    processes = []

    def start(*arguments):
        log = (tmp_path / f"{len(processes)}.log").open("wb")
        command = [flower_python, "federation.py", *(str(each) for each in arguments)]
        with log:
            process = subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=log, stderr=subprocess.STDOUT)
        processes.append(process)
        return process

    yield start
    for process in processes:
        process.kill()
        process.wait(timeout=30)


def finished(process, tmp_path, seconds=240):
    try:
        code = process.wait(timeout=seconds)
    except subprocess.TimeoutExpired:
        code = "too slow"
    logs = "\n".join(f"{log.name}:\n{log.read_text()}" for log in sorted(tmp_path.glob("*.log")))
    assert code == 0, f"{code}\n{logs}"


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_real_flower_server_is_recorded(federation, tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    path = tmp_path / "round.audit"
    server = federation("server", port, path)
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and server.poll() is None:
        with socket.socket() as attempt:
            if attempt.connect_ex(("127.0.0.1", port)) == 0:
                break
        time.sleep(0.2)
    clients = [federation("client", port, number) for number in range(2)]
    finished(server, tmp_path)
    for client in clients:
        finished(client, tmp_path, seconds=60)
    assert_opened(path)
    assert read_audit_file(path).framework.startswith("flwr 1.")


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_the_message_interface_of_flower_is_recorded(federation, tmp_path):
    path = tmp_path / "round.audit"
    finished(federation("messages", path), tmp_path)
    assert_opened(path)
    # Flower draws the clients of a round, in any order.
    assert sorted(client.id for client in read_audit_file(path).clients) == ["0", "1"]
