"""Stores and buckets as mappings."""

import array
import random
from collections.abc import Mapping, MutableMapping

import numpy
import pytest
import terrace_cache


def test_a_bucket_is_a_mutable_mapping(bucket):
    assert isinstance(bucket, MutableMapping) and not bucket
    bucket["b"] = b"2"
    bucket[b"a"] = b"1"
    assert dict(bucket) == {"a": b"1", "b": b"2"} and len(bucket) == 2
    assert list(bucket) == list(bucket.keys()) == ["a", "b"] and list(bucket.values()) == [b"1", b"2"]
    assert "a" in bucket and b"b" in bucket and "c" not in bucket
    assert bucket.get("c") is None and bucket.get("c", 7) == 7 and bucket.get("a") == b"1"
    assert bucket.setdefault("a", b"x") == b"1" and bucket.setdefault("c", b"3") == b"3"
    bucket.update({"d": b"4"}, e=b"5")
    assert bucket.pop("d") == b"4" and bucket.pop("d", None) is None
    assert bucket.popitem() == ("a", b"1")
    del bucket["b"]
    for call in (lambda: bucket["b"], lambda: bucket.pop("b"), lambda: bucket.__delitem__("b"), lambda: bucket.stat("b")):
        with pytest.raises(KeyError):
            call()
    assert (b"5" in bucket.values(), ("c", b"3") in bucket.items(), b"9" in bucket.values()) == (True, True, False)
    bucket.clear()
    assert not list(bucket) and bucket.nbytes == 0
    with pytest.raises(KeyError):
        bucket.popitem()


def test_a_bucket_does_as_a_dict_does(bucket):
    seed = random.randrange(1 << 32)
    print("seed", seed)
    rng, model = random.Random(seed), {}
    for _ in range(3000):
        key, value = f"k{rng.randrange(50)}", rng.randbytes(rng.choice((0, 1, 100, 5000)))
        match rng.randrange(7):
            case 0 | 1:
                bucket[key] = model[key] = value
            case 2:
                assert bucket.pop(key, None) == model.pop(key, None)
            case 3:
                assert bucket.get(key) == model.get(key) and (key in bucket) == (key in model)
            case 4:
                assert bucket.setdefault(key, value) == model.setdefault(key, value)
            case 5:
                bucket.append(key, value)
                model[key] = model.get(key, b"") + value
            case 6:
                offset = rng.randrange(6000)
                bucket.put_at(key, offset, value)
                if value:
                    old = model.get(key, b"").ljust(offset, b"\0")
                    model[key] = old[:offset] + value + old[offset + len(value):]
                else:
                    model[key] = bucket[key]
    assert list(bucket.items()) == sorted(model.items())


def test_a_store_is_a_mapping_of_buckets(store):
    assert isinstance(store, Mapping)
    store.bucket("a")["k"] = b"v"
    store.bucket("z", scratch=True)["k"] = b"v"
    assert list(store) == ["a", "z"] and "a" in store and "x" not in store and len(store) == 2
    assert store["a"]["k"] == b"v" and store["z"].is_scratch and not store["a"].is_scratch
    with pytest.raises(KeyError):
        store["x"]
    assert store.rename_bucket("a", "b") and not store.rename_bucket("a", "c")
    del store["z"]
    assert list(store) == ["b"]
    with pytest.raises(KeyError):
        del store["z"]
    assert store.usage()["blobs"] == 1 and store.stats()["memory"]


def test_blobs_survive_the_end_of_a_store(tmp_path):
    with terrace_cache.open(tmp_path, memory="32MiB") as store:
        store.bucket("b")["k"] = b"v"
        store.bucket("s", scratch=True)["k"] = b"v"
    assert store.closed
    with terrace_cache.open(tmp_path, memory="32MiB", sync="always") as store:
        store.wait_warm()
        assert store["b"]["k"] == b"v" and list(store["s"]) == []
        store.bucket("b").put("k", b"w", meta=7)
        assert store["b"].stat("k")[:2] == (1, 7)
        assert not store["b"].put("k", b"x", only_new=True)
    terrace_cache.destroy(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_persistent_bucket_is_a_directory_of_files(tmp_path, store):
    bucket = store.bucket("p", persist=tmp_path / "out")
    bucket["k"] = b"v"
    bucket["a/b"] = b"w"
    store.sync()
    assert {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()} == {"k": b"v", "a%2Fb": b"w"}
    assert bucket.persist_path == tmp_path / "out" and store.bucket("b").persist_path is None
    with pytest.raises(ValueError, match="cannot persist"):
        store.bucket("s", scratch=True, persist=tmp_path / "other")


def test_a_store_left_open_is_closed_with_the_program(tmp_path):
    import subprocess
    import sys

    program = f"import terrace_cache as t; b = t.open({str(tmp_path)!r}, memory='32MiB', sync='no').bucket('b'); b['k'] = b'v'"
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True).stderr == ""
    with terrace_cache.open(tmp_path, memory="32MiB") as store:
        assert store["b"]["k"] == b"v"


def test_keys_that_are_not_utf8_come_back(bucket):
    for key in (b"\xff\0x", "täg", "\udcff", ""):
        bucket[key] = b"v"
    assert set(bucket) == {"\udcff\0x", "täg", "\udcff", ""}
    assert b"\xff" in bucket and bucket["\udcff\0x"] == b"v"
    with pytest.raises(TypeError, match="a key is str or bytes, not int"):
        bucket[5] = b""


@pytest.mark.parametrize("size", (0, 1, 63, 64, 4095, 4096, 4097, 300_000))
def test_values_of_all_buffers_come_back(bucket, size):
    data = random.randbytes(size)
    for value in (data, bytearray(data), memoryview(data), memoryview(bytearray(data)), numpy.frombuffer(data, "u1"), array.array("B", data)):
        bucket["k"] = value
        assert bucket["k"] == data
        del bucket["k"]


def test_arrays_that_are_not_contiguous_go_in_as_they_read(bucket):
    field = numpy.arange(60, dtype="f8").reshape(6, 10)
    for part in (field[:, ::3], field.T, field[::2]):
        bucket["k"] = part
        assert bucket["k"] == part.tobytes()
    with pytest.raises(TypeError):
        bucket["k"] = "text"


def test_a_view_stays_while_its_blob_changes(bucket):
    old = random.randbytes(200_000)
    bucket["k"] = old
    view = memoryview(bucket["k"])
    shown = numpy.frombuffer(bucket["k"], "u1")
    bucket["k"] = random.randbytes(200_000)
    bucket.put_at("k", 100, b"x" * 1000)
    assert view == old and shown.tobytes() == old
    del bucket["k"]
    for i in range(200):
        bucket[f"other {i}"] = random.randbytes(200_000)
    bucket.store.close()
    assert view == old and shown.tobytes() == old and view.readonly


def test_parts_are_read_into_buffers(bucket):
    data = random.randbytes(10_000)
    bucket["k"] = data
    room = bytearray(100)
    assert bucket.readinto("k", room, offset=5000) == 100 and room == data[5000:5100]
    assert bucket.readinto("k", room, offset=9950) == 50 and room[:50] == data[9950:]
    assert bucket.readinto("k", bytearray()) == 0
    field = numpy.zeros((5, 5), "i4")
    assert bucket.readinto("k", field) == 100 and field.tobytes() == data[:100]
    assert bucket.get_at("k", 9990, 1 << 40) == data[9990:] and bucket.get_at("k", 20_000, 5) == b""
    for wrong in (b"const", field[:, ::2]):
        with pytest.raises(BufferError):
            bucket.readinto("k", wrong)
    with pytest.raises(KeyError):
        bucket.readinto("none", room)


def test_blobs_are_renamed_cut_and_described(store, bucket):
    bucket["k"] = b"12345"
    bucket.rename("k", "l")
    bucket.truncate("l", 3)
    assert bucket.set_score("l", 1.0) and bucket.set_meta("l", 9) and bucket.tag("l", "t")
    assert bucket.stat("l")._replace(version=0) == (3, 9, 0, 1.0) and bucket.tags("l") == ["t"]
    other = store.bucket("other")
    bucket.rename("l", "m", bucket=other)
    assert other["m"] == b"123" and not bucket and store.tagged("t") == [("other", "m")]
    for call in (lambda: bucket.rename("l", "x"), lambda: bucket.truncate("l", 0)):
        with pytest.raises(KeyError):
            call()


def test_lists_and_scans_name_each_key(bucket):
    names = sorted(f"{i % 7}/{i}" for i in range(5000))
    bucket.update((name, b"") for name in names)
    assert bucket.list() == names and sorted(bucket.scan()) == names
    assert bucket.list("3/") == [name for name in names if name.startswith("3/")]
    assert [key for key in bucket if bucket.pop(key) == b""] == names, "keys may be removed while they are listed"
