"""Files that somebody damaged, by chance or on purpose: one error of ours, no code run, no memory filled."""

import copy
import json
import math
import subprocess
import sys
import textwrap

import numpy as np
import pytest
from safetensors.numpy import save

import workbench as wb
from workbench.files import container
from workbench.session import checkpoint, recording

# Runs in a process of its own, whose memory is limited and watched, and in which no code may come to life.
FUZZ = """
    import random, resource, sys
    import numpy as np
    import workbench as wb

    paths, count, seed = {"session": sys.argv[1], "recording": sys.argv[2]}, int(sys.argv[3]), int(sys.argv[4])
    loads = {"session": wb.AttackSession.load, "recording": wb.replay}
    for kind, load in loads.items():
        load(paths[kind])
    chance = random.Random(seed)

    def mutate(content):
        way = chance.randrange(6)
        at = chance.randrange(len(content))
        header = 8 + int.from_bytes(content[:8], "little")
        if way == 0:
            return content[:at]
        if way == 1:
            return content[:at] + chance.randbytes(chance.randrange(1, 100)) + content[at:]
        if way == 2:
            return content[:at] + content[at + chance.randrange(1, 100):]
        if way in (3, 4):
            at = chance.randrange(header) if way == 4 else at
            changed = bytearray(content)
            changed[at] ^= 1 << chance.randrange(8)
            return bytes(changed)
        at = chance.randrange(header)
        part = chance.randbytes(chance.randrange(1, 9))
        return content[:at] + part + content[at + len(part):]

    came_to_life = []
    suspicious = ("exec", "compile", "import", "pickle.find_class", "marshal.loads", "os.system", "subprocess.Popen")
    sys.addaudithook(lambda event, _: came_to_life.append(event) if event in suspicious else None)
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    limit = next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmSize")) * 1024
    resource.setrlimit(resource.RLIMIT_AS, (limit + 2**30, limit + 2**30))
    for kind, load in loads.items():
        whole, damaged = open(paths[kind], "rb").read(), paths[kind] + " damaged"
        for number in range(count):
            content = mutate(whole)
            if content == whole:
                continue
            with open(damaged, "wb") as file:
                file.write(content)
            try:
                load(damaged)
            except wb.CheckpointError as error:
                assert damaged in str(error), f"{kind}, mutation {number}: the error does not name the file: {error}"
                assert "\\n" not in str(error), f"{kind}, mutation {number}: not one line: {error}"
            else:
                raise SystemExit(f"{kind}: mutation {number} was not noticed")
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - used) / 1024
    assert grown < 100, f"memory grew by {grown:.0f} MB"
    assert not came_to_life, f"code came to life: {sorted(set(came_to_life))}"
    print("all", count, "noticed")
"""


def fuzz(saved, count, seed):
    paths = [str(saved["session"]), str(saved["recording"])]
    command = [sys.executable, "-c", textwrap.dedent(FUZZ), *paths, str(count), str(seed)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert f"all {count} noticed" in done.stdout


@pytest.fixture(scope="module")
def saved(make_session, client, tmp_path_factory):
    """A session in its second phase with steering, saved and recorded: {kind: path}."""
    folder = tmp_path_factory.mktemp("saved")
    session = make_session()
    session.steer(tv_weight=0.01)
    session.step(20)
    session.steer(prior_weight=50.0)
    session.step(15)
    paths = {"session": folder / "session", "recording": folder / "recording"}
    session.save(paths["session"])
    session.record(paths["recording"], truth=client)
    return paths


@pytest.fixture(scope="module")
def contents(saved):
    """{kind: (settings, tensors)} of the saved files."""
    return {kind: container.read(path, kind, VERSION[kind]) for kind, path in saved.items()}


LOAD = {"session": wb.AttackSession.load, "recording": wb.replay}
VERSION = {"session": checkpoint.FORMAT_VERSION, "recording": recording.FORMAT_VERSION}


def test_a_hundred_mutations_are_noticed(saved):
    fuzz(saved, 100, seed=0)


@pytest.mark.slow
def test_a_thousand_mutations_are_noticed(saved):
    fuzz(saved, 1000, seed=1)


@pytest.mark.parametrize("kind", LOAD)
def test_white_space_that_no_checksum_sees_is_noticed(saved, kind, tmp_path):
    content = saved[kind].read_bytes()
    length = int.from_bytes(content[:8], "little")
    header = content[8 : 8 + length].rstrip(b" ")
    header = header[:-1] + b"\t}" + b" " * (length - len(header) - 1)
    changed = len(header).to_bytes(8, "little") + header + content[8 + length :]
    (tmp_path / "spaced").write_bytes(changed)
    with pytest.raises(wb.CheckpointError, match="header"):
        LOAD[kind](tmp_path / "spaced")


def put(tree, path, value):
    """A copy of nested dictionaries with one entry changed, or taken away with `...`."""
    tree = copy.deepcopy(tree)
    *heads, last = path.split(".")
    part = tree
    for head in heads:
        part = part[head]
    if value is ...:
        del part[last]
    else:
        part[last] = value
    return tree


def why_not_refused(kind, path, field=""):
    """Loading must fail with one sentence that names the file (and the field); otherwise, what happened instead."""
    try:
        LOAD[kind](path)
    except wb.CheckpointError as error:
        message = str(error)
        if str(path) not in message or field not in message:
            return f"the error does not name the file and {field!r}: {message}"
        return "the error is not one sentence" if len(message) >= 1000 else None
    except Exception as error:
        return f"it raised {error!r:.200}"
    return "it was loaded"


def check_refused(kind, path, cases):
    """Every case (name, settings, tensors) has a right checksum, so the content itself must be refused."""
    wrong = []
    for name, settings, tensors in cases:
        container.write(path, kind, VERSION[kind], settings, tensors)
        if reason := why_not_refused(kind, path):
            wrong.append(f"{name}: {reason}")
    assert not wrong, "\n".join([f"{len(wrong)} hostile files were not refused well:", *wrong])


HUGE = 10**12
SETTINGS = {
    "session": {
        "observation.num_images": [HUGE, 0, -5, "5", 5.0, True, None, 6, ...],
        "observation.epochs": [HUGE, 0, -2, 3, [], ...],
        "observation.batch_size": [HUGE, 0, -1, None],
        "observation.num_clients": [HUGE, 0, 2, -1],
        "observation.num_classes": [HUGE, 1, 63, "62"],
        "observation.learning_rate": [-1.0, 0.0, "fast", None, 1e300],
        "observation.image_shape": [
            [10**6, 10**6, 1],
            [28, 28],
            [28, 28, 1, 1],
            "abc",
            None,
            [-28, -28, 1],
            [28, 28, 3],
        ],
        "observation.server_weights": [{}],
        "observation.unknown": [1],
        "config.epochs": [HUGE, 3, -1, "2"],
        "config.batch_size": [HUGE, -1, 6, 2.5],
        "config.steps": [0, -5, "many", 10**40, None],
        "config.warm_start_steps": [-1, 10**30, 1000, 0],
        "config.surrogate_points": [10**9, 0, "2"],
        "config.method": ["os.system", 5, None, ["ours_prior"], "shared"],
        "config.prior": ["eval", None],
        "config.update_weight": [[1e300, 1.0], [1.0], "12", [0, 1]],
        "config.low_memory": ["x"],
        "config.consensus_every": [0, -1],
        "config.unknown": [1],
        "config": [[], None, "steps", {"steps": [[[[[[]]]]]]}, ...],
        "model.name": ["os.system", 5, None, "femnist_cnn", ["mlp"], ...],
        "model.options": [
            {"widths": [10**9]},
            {"widths": [10**5, 10**5, 10**5]},
            {"widths": "abc"},
            {"widths": [16.5]},
            {"num_classes": HUGE},
            {"image_shape": [10**6, 10**6, 10**3]},
            {"unknown": 1},
            [],
            "abc",
            5,
            None,
        ],
        "model.unknown": [1],
        "model": [None, [], "mlp"],
        "seed": [-1, "0", None, 1.5, ...],
        "own": ["prior", 5, ["prior"], None, ...],
        "normalization": [{}, {"mean": [0.5], "std": [0]}, {"mean": [0.5] * 3, "std": [1] * 3}, "x", None],
        "snapshot_every": [0, -1, "x", None],
        "snapshot_bytes": [0, -1, 1.5],
        "has_diverged": ["yes", 1, None],
        "unknown": [1],
    },
    "recording": {
        "client.num_images": [HUGE, 0, -5, "5", True, None, 6],
        "client.num_clients": [HUGE, 0, 2],
        "client.num_classes": [HUGE, 1, "x"],
        "client.epochs": [0, "2", None, ...],
        "client.learning_rate": [0, "x"],
        "client.image_shape": [[10**6, 10**6, 1], [28, 28], "abc", None, [-28, 28, 1], [28, 28, 3]],
        "client.unknown": [1],
        "config.steps": [-1, "many"],
        "config.unknown": [1],
        "config": [None, []],
        "num_steps": [HUGE, -1, 34, "35"],
        "total_steps": [0, "x"],
        "outcome": ["WELL", None, 5, ["NEW"]],
        "seconds_per_step": ["fast", -1.0],
        "device_name": [5, None],
        "view": [None, {}, {"received": {}, "assumed": [], "never seen": {}}],
        "terms": [["a"], 5, [1] * 6],
        "steps": [[], [0], [35, 0], list(range(10_000)), "x", [0, HUGE]],
        "threshold": ["x", None],
        "truth": [5, [{}], [{"class_names": "x"}]],
        "unknown": [1],
    },
}
CASES = [(kind, path, value) for kind, paths in SETTINGS.items() for path, values in paths.items() for value in values]


@pytest.mark.parametrize("kind", LOAD)
def test_hostile_settings_with_a_right_checksum_are_refused(contents, tmp_path, kind):
    settings, tensors = contents[kind]
    cases = [(path, value) for other, path, value in CASES if other == kind]
    named = ((f"{path} = {value!r:.60}", put(settings, path, value), tensors) for path, value in cases)
    check_refused(kind, tmp_path / "hostile", named)


def test_settings_that_are_not_changed_are_not_refused(contents, tmp_path):
    for kind, load in LOAD.items():
        container.write(tmp_path / kind, kind, VERSION[kind], *contents[kind])
        load(tmp_path / kind)


STATE_STEP, STATE_PHASE = "state/4", "state/5"
TENSORS = {
    "session": {
        "labels": [
            lambda a: a + 62,
            lambda a: a - 62,
            lambda a: a.astype(np.float32),
            lambda a: a[:, :1],
            lambda a: a[..., :0],
        ],
        "state/0": [
            lambda a: a * np.float32(np.nan),
            lambda a: a[:, :1],
            lambda a: a.astype(np.float64),
            lambda a: a[0],
        ],
        "state/1": [lambda a: a.astype(np.int64), lambda a: a[None]],
        STATE_STEP: [lambda a: a * 0 - 1, lambda a: a * 0 + np.int32(2**31 - 1), lambda a: a * 0 + 3, lambda a: a + 1],
        STATE_PHASE: [lambda a: a * 0, lambda a: a + 1, lambda a: a - 9],
        "history": [lambda a: a[:, :-1], lambda a: a[:-1], lambda a: a.astype(np.float64), lambda a: a[0]],
        "steering/step": [lambda a: a - 1, lambda a: a + 16, lambda a: a[::-1].copy(), lambda a: a.astype(np.int32)],
        "steering/name": [lambda a: a + np.uint8(200), lambda a: a[:1]],
        "steering/value": [lambda a: a * math.nan, lambda a: -a, lambda a: a * 1e300],
        "server_weights/Dense_0/kernel": [
            lambda a: a[:-1],
            lambda a: a * np.float32(np.inf),
            lambda a: a.astype(np.int32),
        ],
        "client_weights/last_layer/bias": [lambda a: a[:5], lambda a: a[None]],
    },
    "recording": {
        "history": [lambda a: a[:, :-1], lambda a: a[:-1]],
        "label_counts": [lambda a: a[:, :-1], lambda a: a.astype(np.int8)],
        "steering/name": [lambda a: a + np.uint8(200)],
        "0/images": [lambda a: a[:-9], lambda a: a[:0], lambda a: a[::-1].copy(), lambda a: a.astype(np.int64)],
        "0/permutations": [lambda a: a * 0, lambda a: a[:, :-1], lambda a: a - 1, lambda a: a[0], lambda a: a[:0]],
        "0/labels": [lambda a: a[:-1], lambda a: a.astype(np.float32)],
        "0/psnr": [lambda a: a[:-1], lambda a: a.astype(np.int64)],
        "labels/bias/whole": [lambda a: a[:-1]],
        "truth/0/images": [lambda a: a[:-9]],
        "truth/0/labels": [lambda a: a + 62, lambda a: a[:-1]],
    },
}


def hostile_tensors(kind, tensors):
    """(name, tensors): every change of `TENSORS`, and every tensor that it names missing."""
    for name, changes in TENSORS[kind].items():
        for number, change in enumerate(changes):
            yield f"{name}, change {number}", {**tensors, name: np.ascontiguousarray(change(tensors[name]))}
        yield f"{name} missing", {key: array for key, array in tensors.items() if key != name}


@pytest.mark.parametrize("kind", LOAD)
def test_hostile_tensors_with_a_right_checksum_are_refused(contents, tmp_path, kind):
    settings, tensors = contents[kind]
    cases = ((name, settings, changed) for name, changed in hostile_tensors(kind, tensors))
    check_refused(kind, tmp_path / "hostile", cases)


def test_a_picture_that_unpacks_to_too_much_is_refused(contents, tmp_path):
    settings, tensors = contents["recording"]
    bomb = np.frombuffer(recording.zlib.compress(bytes(2**27), 9), np.uint8)
    check_refused("recording", tmp_path / "hostile", [("bomb", settings, {**tensors, "0/images": bomb})])


TEXTS = {
    "a list": "[]",
    "a number": "5",
    "nothing": "",
    "deep": "[" * 100_000,
    "deep and closed": "[" * 900 + "]" * 900,
    "deep within": '{"config": ' * 3000 + "1" + "}" * 3000,
    "not JSON": "{'config': 1}",
    "infinite": '{"seed": Infinity}',
    "long number": '{"seed": ' + "9" * 10_000 + "}",
    "long": "[" + "[]," * 2_000_000 + "[]]",
}


def write_metadata(path, metadata, tensors):
    """A file with this metadata and a right checksum."""
    path.write_bytes(save(tensors, {**metadata, "sha256": container._digest(metadata, tensors)}))


@pytest.mark.parametrize("kind", LOAD)
def test_settings_that_are_not_settings_are_refused(contents, tmp_path, kind):
    path, wrong = tmp_path / "hostile", []
    for name, text in TEXTS.items():
        write_metadata(path, {"kind": kind, "format": str(VERSION[kind]), "settings": text}, contents[kind][1])
        if reason := why_not_refused(kind, path):
            wrong.append(f"{name}: {reason}")
    assert not wrong, "\n".join(wrong)


def test_format_versions_that_are_none_are_refused(contents, tmp_path):
    path, wrong = tmp_path / "hostile", []
    for version in ("0", "-1", "", "one", "²", "9" * 30, "1.0"):
        metadata = {"kind": "session", "format": version, "settings": json.dumps({})}
        write_metadata(path, metadata, contents["session"][1])
        if reason := why_not_refused("session", path, "format version"):
            wrong.append(f"{version!r}: {reason}")
    assert not wrong, "\n".join(wrong)


def test_loading_hostile_sizes_takes_no_memory(saved, contents, tmp_path, start_process):
    """All settings that name something huge, in a process whose memory is watched."""
    paths = []
    for number, (kind, path, value) in enumerate(CASES):
        if isinstance(value, int | list | dict) and "000000" in json.dumps(value):
            settings, tensors = contents[kind]
            paths.append((kind, str(tmp_path / str(number))))
            container.write(paths[-1][1], kind, VERSION[kind], put(settings, path, value), tensors)
    assert len(paths) > 15
    process = start_process(f"""
        import resource
        load = {{"session": wb.AttackSession.load, "recording": wb.replay}}
        load["session"]({str(saved["session"])!r})
        used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        for kind, path in {paths!r}:
            try:
                load[kind](path)
            except wb.CheckpointError:
                pass
        print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - used) / 1024)
        """)
    out, _ = process.finish()
    assert float(out) < 100, f"memory grew by {out} MB"


@pytest.mark.parametrize(
    "shape", [[2**12, 2**12, 1], [2**11, 3 * 2**9, 1]], ids=["large images", "many pixels in few bytes"]
)
def test_a_small_recording_that_claims_many_pixels_is_refused_before_anything_is_unpacked(
    contents, tmp_path, shape, monkeypatch
):
    settings, tensors = contents["recording"]
    # As many sets of images as are there, each of the largest size that fits the claim.
    frames = [name for name in tensors if name.endswith(("/images", "/epochs")) and not name.startswith("truth/")]
    packed = np.frombuffer(recording.zlib.compress(bytes(2**28 // len(frames)), 9), np.uint8)
    hostile = {name: packed if name in frames else array for name, array in tensors.items()}
    path = tmp_path / "hostile"
    container.write(path, "recording", VERSION["recording"], put(settings, "client.image_shape", shape), hostile)
    assert path.stat().st_size < 400_000, "the file is not small, so this checks nothing"
    monkeypatch.setattr(recording, "_unpack", lambda *_: pytest.fail("something was unpacked"))
    with pytest.raises(wb.CheckpointError, match=r"hostile: it claims \d+ sets of .* pixels in \d+ bytes"):
        wb.replay(path)
