"""The file system terrace://."""

import copy
import errno
import multiprocessing
import pickle
import random
import sys
import threading

import fsspec
import numpy
import pandas
import pyarrow
import pyarrow.dataset
import pyarrow.parquet
import pytest
import terrace_cache
from terrace_cache import errors
import xarray
import zarr
from terrace_cache.fs import TerraceFileSystem


@pytest.fixture
def fs(store):
    return fsspec.filesystem("terrace", store=store, skip_instance_cache=True)


def content(fs, path):
    return {one: fs.cat(one) for one in fs.find(path)}


def test_the_protocol_is_known(tmp_path, monkeypatch):
    assert fsspec.get_filesystem_class("terrace") is TerraceFileSystem
    monkeypatch.setenv("TERRACE_STORE", str(tmp_path))
    with fsspec.open("terrace://b/k", "wb", memory="32MiB") as file:
        file.write(b"v")
    fs, path = fsspec.url_to_fs("terrace://b/k", memory="32MiB")
    assert fs.cat(path) == b"v" and terrace_cache.opened(tmp_path)["b"]["k"] == b"v"
    fs.close()
    monkeypatch.delenv("TERRACE_STORE")
    with pytest.raises(ValueError, match="which store"):
        fsspec.filesystem("terrace", skip_instance_cache=True)


def test_files_are_written_read_listed_and_removed(fs):
    fs.pipe({"b/one": b"1", "b/d/two": b"22", "b/d/e/three": b"333", "c/k": b""})
    assert fs.ls("", detail=False) == ["b", "c"] and fs.ls("b", detail=False) == ["b/d", "b/one"]
    assert fs.ls("b/d", detail=False) == ["b/d/e", "b/d/two"] and fs.ls("b/one", detail=False) == ["b/one"]
    assert fs.find("b") == ["b/d/e/three", "b/d/two", "b/one"] and fs.glob("b/**/t*") == ["b/d/e/three", "b/d/two"]
    assert fs.info("b/d")["type"] == "directory" and fs.info("b/d/two")["size"] == 2 and fs.du("b") == 6
    assert fs.isdir("b") and fs.isfile("b/one") and not fs.exists("b/none") and not fs.exists("none/k")
    assert fs.cat_file("b/d/e/three", start=1) == b"33" and fs.cat_file("b/d/e/three", end=-1) == b"33"
    fs.rm("b/d", recursive=True)
    assert fs.find("b") == ["b/one"] and not fs.exists("b/d")
    for path in ("b/none", "none/k"):
        for call in (fs.cat, fs.info, fs.rm_file, fs.open):
            with pytest.raises(FileNotFoundError):
                call(path)
    fs.rm("b", recursive=True)
    assert fs.ls("", detail=False) == ["c"]


def test_buckets_are_made_and_removed(fs):
    fs.mkdir("b")
    fs.makedirs("b/any", exist_ok=True)
    with pytest.raises(FileExistsError):
        fs.mkdir("b")
    with fs.open("b/k", "wb") as file:
        file.write(b"v")
    with pytest.raises(OSError):
        fs.rmdir("b")
    fs.rm_file("b/k")
    fs.rmdir("b")
    assert fs.ls("") == []


def test_files_move_and_are_copied(fs):
    fs.pipe({"b/one": b"1", "b/d/two": b"22", "b/d/e/three": b"333"})
    fs.mv("b/one", "c/uno")
    assert fs.cat("c/uno") == b"1" and not fs.exists("b/one")
    fs.mv("b/d", "c/d", recursive=True)
    assert fs.find("c") == ["c/d/e/three", "c/d/two", "c/uno"] and fs.find("b") == []
    fs.cp("c/uno", "c/dos")
    assert fs.cat("c/dos") == fs.cat("c/uno") == b"1"
    with pytest.raises(FileNotFoundError):
        fs.mv("c/none", "c/x")


def test_a_blob_hides_no_directory_of_its_name(fs):
    everything = {"b/k": b"1", "b/k/x": b"2", "b/k/y/z": b"3", "b/x//y": b"4", "b/other": b"5"}
    fs.pipe(everything)
    assert fs.find("b") == sorted(everything) and fs.find("") == sorted(everything)
    assert [fs.info(one)["size"] for one in fs.find("b")] == [1] * 5
    walked = {f"{top}/{one}": top for top, _, files in fs.walk("b") for one in files}
    assert {"b/k", "b/k/x", "b/k/y/z", "b/other"} <= walked.keys()
    kinds = [(entry["name"], entry["type"]) for entry in fs.ls("b")]
    assert kinds.count(("b/k", "file")) == kinds.count(("b/k", "directory")) == 1
    assert fs.find("b/k") == ["b/k/x", "b/k/y/z"] and fs.find("b/k/x") == ["b/k/x"] and fs.find("b/none") == []
    assert fs.find("b", maxdepth=1) == ["b/k", "b/other"] and fs.find("", maxdepth=2) == ["b/k", "b/other"]
    assert fs.find("b", maxdepth=2) == ["b/k", "b/k/x", "b/other"]
    assert fs.find("b/k", withdirs=True) == ["b/k/x", "b/k/y", "b/k/y/z"]
    assert "b" in fs.find("", withdirs=True) and fs.du("b") == 5
    fs.copy("b", "c", recursive=True)
    assert content(fs, "c") == {f"c{one[1:]}": value for one, value in everything.items()}
    fs.mv("c/k", "d/k", recursive=True)
    assert fs.find("d") == ["d/k", "d/k/x", "d/k/y/z"] and fs.find("c") == ["c/other", "c/x//y"]
    fs.rm("d/k", recursive=True)
    assert fs.find("d") == [] and fs.exists("d")
    fs.rm("b", recursive=True)
    assert not fs.exists("b") and len(fs.find("c")) == 2


def test_moves_end_where_those_of_other_file_systems_do(fs):
    fs.pipe({"b/d/1": b"1", "b/m": b"2", "b/n": b"3"})
    fs.mv("b/m", "b/d/")
    fs.mv("b/n", "b/d")
    assert fs.find("b") == ["b/d/1", "b/d/m", "b/d/n"]
    fs.mv("b/d", "b/e", recursive=True)
    fs.mv("b/e", "c/")
    assert fs.find("c") == ["c/e/1", "c/e/m", "c/e/n"] and fs.find("b") == []
    fs.mv("c/e/1", "c/e/1")
    assert fs.cat("c/e/1") == b"1"


def test_what_is_no_blob_is_an_error(fs):
    fs.pipe("b/x/y", b"1")
    with pytest.raises(IsADirectoryError):
        fs.open("b/x", "rb")
    with pytest.raises(FileNotFoundError):
        fs.rm("b/none")
    with pytest.raises(IsADirectoryError):
        fs.rm("b/x")
    for call in (fs.modified, fs.ukey):
        with pytest.raises(IsADirectoryError):
            call("b/x")
    assert fs.find("b") == ["b/x/y"]


def test_times_differ_with_each_change(fs):
    times = set()
    for value in range(5):
        fs.pipe("b/k", bytes([value]))
        assert fs.modified("b/k") == fs.modified("b/k")
        times.add(fs.modified("b/k").timestamp())
    assert len(times) == 5
    with pytest.raises(NotImplementedError):
        fs.created("b/k")


@pytest.mark.parametrize("mode", ["wb", "ab", "xb"])
def test_a_transaction_is_carried_out_whole_or_not_at_all(fs, mode):
    path = "b/new" if mode == "xb" else "b/k"
    fs.pipe("b/k", b"base")
    with pytest.raises(RuntimeError):
        with fs.transaction:
            with fs.open(path, mode, block_size=1 << 16) as file:
                file.write(b"x" * 200_000)
            raise RuntimeError
    assert content(fs, "b") == {"b/k": b"base"} and not len(fs.store[".uploads"])
    with fs.transaction:
        with fs.open(path, mode, block_size=1 << 16) as file:
            file.write(b"x" * 200_000)
        assert content(fs, "b") == {"b/k": b"base"}
    assert fs.cat(path) == (b"base" if mode == "ab" else b"") + b"x" * 200_000 and not len(fs.store[".uploads"])


def test_a_file_system_stays_in_its_process(fs):
    with pytest.raises(TypeError, match="serve kv"):
        pickle.dumps(fs)
    with multiprocessing.get_context("spawn").Pool(1) as pool, pytest.raises(TypeError, match="serve kv"):
        pool.apply(type, (fs,))
    assert copy.copy(fs) is fs and copy.deepcopy([fs]) == [fs]


def test_a_file_becomes_a_blob_when_it_is_closed(fs):
    data = random.randbytes(10 << 20)
    fs.pipe("b/k", b"old")
    with fs.open("b/k", "wb", block_size=1 << 20) as file:
        for at in range(0, len(data), 300_000):
            file.write(data[at:at + 300_000])
            assert fs.cat("b/k") == b"old"
    assert fs.cat("b/k") == data and fs.ls("", detail=False) == ["b"]
    with pytest.raises(RuntimeError):
        with fs.transaction:
            with fs.open("b/k", "wb") as file:
                file.write(b"never")
            raise RuntimeError
    assert fs.cat("b/k") == data
    with fs.open("b/k", "ab") as file:
        file.write(b"end")
    assert fs.cat_file("b/k", start=-5) == data[-2:] + b"end"
    with pytest.raises(FileExistsError):
        with fs.open("b/k", "xb") as file:
            file.write(b"new")


def test_what_a_killed_process_was_writing_is_removed(store):
    for name in (".uploads", ".uploads.scratch"):
        store.bucket(name)["part"] = b"half"
    fs = TerraceFileSystem(store, skip_instance_cache=True)
    assert list(store) == [] and fs.ls("") == []


def test_an_open_file_never_mixes_two_blobs(fs):
    old, new = random.randbytes(3 << 20), random.randbytes(3 << 20)
    for change in (lambda: fs.pipe("b/k", new), lambda: fs.rm_file("b/k"), lambda: fs.store["b"].put_at("k", 2 << 20, b"x")):
        fs.pipe("b/k", old)
        with fs.open("b/k", block_size=1 << 20, cache_type="bytes") as file:
            assert file.read(1000) == old[:1000]
            change()
            assert file.read(1000) == old[1000:2000], "it was read with the block before"
            with pytest.raises(errors.BlobChangedError, match="open") as info:
                file.read()
            assert info.value.errno == errno.ESTALE
    fs.pipe("b/k", new)
    assert fs.cat("b/k") == new


def test_large_files_go_into_scratch_buckets(fs):
    fs.store.bucket("s", scratch=True)
    data = random.randbytes(9 << 20)
    with fs.open("s/k", "wb") as file:
        file.write(data[:5 << 20])
        assert not fs.exists("s/k") and fs.store[".uploads.scratch"].nbytes == 5 << 20
        file.write(data[5 << 20:])
    assert fs.cat("s/k") == data and fs.ls("", detail=False) == ["s"]
    with pytest.raises(FileExistsError):
        with fs.open("s/k", "xb") as file:
            file.write(data)
    fs.cp("s/k", "kept/k")
    assert fs.cat("kept/k") == data and not fs.store["kept"].is_scratch
    with pytest.raises(IsADirectoryError):
        fs.open(".uploads.scratch/k", "wb")


def test_one_of_many_exclusive_writers_wins(fs, request):
    request.addfinalizer(lambda interval=sys.getswitchinterval(): sys.setswitchinterval(interval))
    sys.setswitchinterval(1e-5)
    fs.mkdir("b")
    for turn in range(60):
        path, start, won, lost = f"b/{turn}", threading.Barrier(8), [], []

        def write(number):
            file = fs.open(path, "xb", block_size=1 << 16)
            file.write(bytes([number]) * 200_000)
            start.wait()
            try:
                file.close()
                won.append(number)
            except FileExistsError:
                lost.append(number)

        threads = [threading.Thread(target=write, args=(number,)) for number in range(8)]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
        assert len(won) == 1 and len(lost) == 7 and fs.cat(path) == bytes(won) * 200_000
    assert not len(fs.store[".uploads"])


def test_files_are_sought_and_read_in_lines(fs):
    data = random.randbytes(3 << 20)
    fs.pipe("b/k", data)
    with fs.open("b/k", block_size=65536) as file:
        for _ in range(100):
            at, size = random.randrange(len(data)), random.randrange(200_000)
            file.seek(at)
            assert file.read(size) == data[at:at + size]
    with fs.open("b/text", "w") as file:
        file.write("one\ntwo\n")
    with fs.open("b/text", "r") as file:
        assert file.readlines() == ["one\n", "two\n"]


def test_tables_of_pandas_come_back(tmp_path):
    where = {"store": str(tmp_path), "memory": "32MiB"}
    table = pandas.DataFrame({"a": range(10_000), "b": numpy.random.default_rng(1).random(10_000), "c": ["x", "y"] * 5000})
    table.to_parquet("terrace://t/a.parquet", storage_options=where)
    table.to_csv("terrace://t/a.csv", index=False, storage_options=where)
    table.to_pickle("terrace://t/a.pickle", storage_options=where)
    pandas.testing.assert_frame_equal(pandas.read_parquet("terrace://t/a.parquet", storage_options=where), table)
    pandas.testing.assert_frame_equal(pandas.read_csv("terrace://t/a.csv", storage_options=where), table)
    pandas.testing.assert_frame_equal(pandas.read_pickle("terrace://t/a.pickle", storage_options=where), table)
    terrace_cache.opened(tmp_path).close()


def test_tables_of_pyarrow_come_back(fs):
    table = pyarrow.table({"part": [1, 2] * 500, "value": range(1000)})
    pyarrow.parquet.write_table(table, "t/whole.parquet", filesystem=fs)
    assert pyarrow.parquet.read_table("t/whole.parquet", filesystem=fs).equals(table)
    pyarrow.dataset.write_dataset(table, "t/parts", filesystem=fs, format="parquet", partitioning=["part"])
    parts = pyarrow.dataset.dataset("t/parts", filesystem=fs, format="parquet", partitioning=["part"])
    assert parts.to_table(filter=pyarrow.dataset.field("part") == 2).num_rows == 500
    assert pyarrow.py_buffer(fs.store["t"]["whole.parquet"]).size == fs.size("t/whole.parquet")


def test_arrays_of_zarr_and_xarray_come_back(tmp_path):
    where = {"store": str(tmp_path), "memory": "32MiB"}
    values = numpy.random.default_rng(2).random((50, 60))
    array = zarr.create_array("terrace://z/array", shape=(50, 60), chunks=(7, 60), dtype="f8", storage_options=where)
    array[:] = values
    assert (zarr.open_array("terrace://z/array", mode="r", storage_options=where)[:] == values).all()
    data = xarray.Dataset({"v": (("x", "y"), values)}, {"x": numpy.arange(50)})
    data.to_zarr("terrace://z/data", storage_options=where, mode="w", consolidated=False)
    xarray.testing.assert_identical(xarray.open_zarr("terrace://z/data", storage_options=where, consolidated=False).load(), data)
    terrace_cache.opened(tmp_path).close()
