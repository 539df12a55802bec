"""Errors are exceptions with one-line texts."""

import errno
import os

import pytest
import terrace_cache
from terrace_cache import errors


def one_line(info, *words):
    text = str(info.value)
    assert "\n" not in text and all(word in text for word in words), text


def test_a_second_opening_is_refused(tmp_path, store):
    with pytest.raises(errors.StoreInUseError) as info:
        terrace_cache.open(tmp_path, memory="32MiB")
    one_line(info, "another program uses this store")
    assert info.value.errno == errno.EBUSY


def test_a_closed_store_says_so_and_may_be_opened_again(tmp_path):
    store = terrace_cache.open(tmp_path, memory="32MiB")
    bucket = store.bucket("b")
    bucket["k"] = b"v"
    store.close()
    store.close()
    calls = (lambda: bucket["k"], lambda: store.bucket("b"), lambda: len(bucket), store.sync, bucket.clear, store.usage)
    for call in calls:
        with pytest.raises(errors.StoreClosedError) as info:
            call()
        one_line(info, "closed")
    assert isinstance(info.value, ValueError)
    with terrace_cache.open(tmp_path, memory="32MiB") as again:
        assert again["b"]["k"] == b"v", "objects of the closed store hold nothing"
    assert "closed" in repr(store)


def test_a_full_store_keeps_the_blob_before(tmp_path):
    with terrace_cache.open(tmp_path, memory="32MiB", capacity="8MiB") as store:
        bucket = store.bucket("b")
        bucket["k"] = b"old"
        with pytest.raises(errors.StoreFullError) as info:
            for i in range(100):
                bucket["k"] = bytes(i) + bytes(4 << 20)
                bucket[f"{i}"] = bytes(1 << 20)
        one_line(info, "full")
        assert info.value.errno == errno.ENOSPC and len(bucket["k"]) >= 3


def test_a_removed_bucket_is_told(store):
    bucket = store.bucket("b")
    del store["b"]
    with pytest.raises(errors.BucketRemovedError) as info:
        bucket["k"] = b"v"
    one_line(info, "removed")
    store.bucket("x"), store.bucket("y")
    with pytest.raises(errors.BucketExistsError):
        store.rename_bucket("x", "y")


def test_wrong_arguments_are_value_errors(tmp_path):
    for wrong in ({"memory": "much"}, {"sync": "often"}, {"sync": 0}, {"sync": -1.0}, {"name": "a/b"}, {"memory": 1}, {"capacity": "1TB"}):
        with pytest.raises(ValueError) as info:
            terrace_cache.open(tmp_path, **wrong)
        one_line(info)


def test_errors_of_the_system_are_those_of_python(tmp_path):
    with pytest.raises(FileNotFoundError):
        terrace_cache.open(tmp_path / "none")
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError):
        terrace_cache.open(tmp_path / "file")
    with terrace_cache.open(tmp_path, memory="32MiB") as store:
        with pytest.raises(ValueError, match="key of 100000 bytes"):
            store.bucket("b")["k" * 100_000] = b""


def test_a_damaged_store_is_refused(tmp_path):
    with terrace_cache.open(tmp_path, memory="32MiB") as store:
        store.bucket("b")["k"] = b"v"
    os.truncate(tmp_path / ".store.names", 10)
    with pytest.raises(errors.StoreDamagedError) as info:
        terrace_cache.open(tmp_path, memory="32MiB")
    one_line(info)


def test_all_errors_of_a_store_have_one_class():
    names = [name for name in dir(errors) if name.endswith("Error")]
    assert len(names) >= 9 and all(issubclass(getattr(errors, name), terrace_cache.TerraceError) for name in names)
