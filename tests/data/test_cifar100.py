"""CIFAR-100 from its binary archive or an .npz; anything else, the pickled version first, is refused."""

import hashlib
import io
import pickle
import tarfile

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workbench.data import cifar100, load_dataset
from workbench.errors import ConfigError, DataError


def pictures(num_images):
    rng = np.random.default_rng(0)
    return rng.integers(0, 256, (num_images, 32, 32, 3), dtype=np.uint8), rng.integers(0, 100, num_images)


def binary(num_images):
    """The binary version's bytes: coarse class, fine class, then the planes."""
    images, labels = pictures(num_images)
    records = [
        bytes([0, label]) + image.transpose(2, 0, 1).tobytes() for image, label in zip(images, labels, strict=True)
    ]
    return b"".join(records)


def archive(num_images, folder="cifar-100-binary", name="train.bin", content=None):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for file, inside in [("fine_label_names.txt", b"apple\n"), (name, content or binary(num_images))]:
            member = tarfile.TarInfo(f"{folder}/{file}")
            member.size = len(inside)
            tar.addfile(member, io.BytesIO(inside))
    return buffer.getvalue()


def sources(folder, num_images):
    """The same pictures in every form that can be read."""
    images, labels = pictures(num_images)
    np.savez(folder / "cifar.npz", images=images, labels=labels)
    (folder / "cifar-100-binary.tar.gz").write_bytes(archive(num_images))
    (folder / "cifar-100-binary").mkdir()
    (folder / "cifar-100-binary" / "train.bin").write_bytes(binary(num_images))
    return {
        "npz": folder / "cifar.npz",
        "archive": folder / "cifar-100-binary.tar.gz",
        "extracted folder": folder / "cifar-100-binary",
        "folder around it": folder,
        "file in it": folder / "cifar-100-binary" / "train.bin",
    }


def test_class_names_are_the_official_ones_in_order():
    names = cifar100.CLASS_NAMES
    assert len(set(names)) == 100
    assert list(names) == sorted(names)
    assert (names[0], names[41], names[99]) == ("apple", "lawn_mower", "worm")


def test_every_source_gives_the_same_clients(tmp_path):
    images, labels = pictures(110)
    for what, path in sources(tmp_path, 110).items():
        dataset = load_dataset("cifar100", path=path)
        assert dataset.num_clients == 2, what
        assert dataset.image_shape == (32, 32, 3), what
        assert dataset.psnr_threshold == 19, what
        dealt = [dataset.client(index) for index in range(2)]
        order = np.random.default_rng(0).permutation(110)
        for index, client in enumerate(dealt):
            own = order[50 * index : 50 * (index + 1)]
            np.testing.assert_array_equal(client.labels, labels[own], err_msg=what)
            np.testing.assert_array_equal(client.images, images[own] / np.float32(255), err_msg=what)


def test_the_seed_deals_the_clients(tmp_path):
    path = sources(tmp_path, 110)["npz"]
    first, again, other = (load_dataset("cifar100", path=path, seed=seed).client(0) for seed in (5, 5, 6))
    np.testing.assert_array_equal(first.images, again.images)
    assert (first.images != other.images).any()
    with pytest.raises(ConfigError, match="seed = -1"):
        load_dataset("cifar100", path=path, seed=-1)


@pytest.mark.parametrize(
    ("arrays", "says"),
    [
        ({"images": np.zeros((50, 32, 32), np.uint8), "labels": np.zeros(50, int)}, r"uint8 \[50, 32, 32\]; expected"),
        ({"images": np.zeros((50, 32, 32, 3)), "labels": np.zeros(50, int)}, r"float64 \[50, 32, 32, 3\]"),
        ({"images": np.zeros((50, 32, 32, 3), np.uint8), "labels": np.full(50, 100)}, "contain 100"),
        ({"images": np.zeros((50, 32, 32, 3), np.uint8), "labels": np.zeros(49, int)}, "labels have shape"),
        (
            {"images": np.zeros((49, 32, 32, 3), np.uint8), "labels": np.zeros(49, int)},
            "has 49 images; a client needs 50",
        ),
        ({"images": np.zeros((50, 32, 32, 3), np.uint8)}, "has no array 'labels'"),
        ({"images": np.array([{}] * 50, dtype=object), "labels": np.zeros(50, int)}, "cannot be read"),
    ],
)
def test_npz_with_wrong_arrays_gets_one_clear_sentence(tmp_path, arrays, says):
    np.savez(tmp_path / "wrong.npz", **arrays)
    with pytest.raises(DataError, match=rf"wrong\.npz.* {says}"):
        load_dataset("cifar100", path=tmp_path / "wrong.npz")


def test_truncated_and_foreign_binaries_get_one_clear_sentence(tmp_path):
    path = tmp_path / "train.bin"
    for content, says in [
        (binary(50)[:-1], "train.bin has 153699 bytes; expected 3074 for each image"),
        (b"", "train.bin has 0 bytes"),
        (b"\xff" * 3074 * 50, "contain 255; with 100 classes"),
    ]:
        path.write_bytes(content)
        with pytest.raises(DataError, match=says):
            load_dataset("cifar100", path=path)


@pytest.mark.parametrize(
    "content", [b"", b"text", archive(50)[:2000], archive(50)[:-20], archive(50)[:10] + b"\0" * 99]
)
def test_truncated_and_foreign_archives_get_one_clear_sentence(tmp_path, content):
    path = tmp_path / "cifar-100-binary.tar.gz"
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"cifar-100-binary\.tar\.gz cannot be read .*; expected CIFAR-100's binary"):
        load_dataset("cifar100", path=path)


def test_the_pickled_version_is_never_read(tmp_path):
    (tmp_path / "python").mkdir()
    (tmp_path / "python" / "train").write_bytes(pickle.dumps({"data": []}))
    (tmp_path / "python.tar.gz").write_bytes(archive(50, "cifar-100-python", "train", pickle.dumps({"data": []})))
    for name in ("python", "python.tar.gz"):
        with pytest.raises(DataError, match=r"has no train\.bin; expected CIFAR-100's binary archive"):
            load_dataset("cifar100", path=tmp_path / name)
    with pytest.raises(DataError, match="train cannot be read"):
        load_dataset("cifar100", path=tmp_path / "python" / "train")


@settings(max_examples=60)
@given(data=st.data())
def test_damaged_archives_never_end_in_a_foreign_error(tmp_path_factory, data):
    content = bytearray(archive(1))
    for _ in range(data.draw(st.integers(0, 3))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    path = tmp_path_factory.getbasetemp() / "damaged.tar.gz"
    path.write_bytes(content[: data.draw(st.integers(0, len(content)))])
    with pytest.raises(DataError, match=r"damaged\.tar\.gz"):
        load_dataset("cifar100", path=path)


def test_a_missing_path_says_what_would_be_right(tmp_path):
    with pytest.raises(DataError, match="does not exist; expected CIFAR-100's binary archive"):
        load_dataset("cifar100", path=tmp_path / "missing")


def test_without_a_path_the_archive_is_downloaded_once(tmp_path, monkeypatch, server):
    content = archive(60)
    server.files["/cifar-100-binary.tar.gz"] = content
    monkeypatch.setenv("WORKBENCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(cifar100, "URL", f"{server.url}/cifar-100-binary.tar.gz")
    monkeypatch.setattr(cifar100, "MD5", hashlib.md5(content).hexdigest())
    for _ in range(2):
        assert load_dataset("cifar100").client(0).num_images == 50
    assert server.num_requests == 1, "the second time it is in the cache"
