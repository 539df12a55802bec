"""Threads and forked processes."""

import os
import random
import signal
import sys
import threading
import time

import numpy
import pytest
import terrace_cache
from terrace_cache import errors


def test_threads_share_a_store(bucket):
    failed = []

    def work(number):
        try:
            rng = random.Random(number)
            for i in range(300):
                data = rng.randbytes(rng.randrange(20_000))
                bucket[f"{number}/{i % 20}"] = data
                assert bucket[f"{number}/{i % 20}"] == data
                value = bucket.get(f"{(number + 1) % 4}/{i % 20}")
                assert value is None or isinstance(value, bytes)
        except BaseException as e:
            failed.append(e)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert not failed and len(bucket) == 80


def test_a_reader_sees_one_put_or_the_other(bucket):
    values = {bytes([i]) * (10_000 + 9000 * i) for i in range(5)}
    bucket["k"] = next(iter(values))
    ends = threading.Event()

    def put():
        while not ends.is_set():
            for value in values:
                bucket["k"] = value

    writer = threading.Thread(target=put)
    writer.start()
    try:
        assert all(bucket["k"] in values for _ in range(2000))
    finally:
        ends.set()
        writer.join()


def test_others_run_while_the_store_works(tmp_path):
    """The interpreter lock is released only by blocking calls here, so the counter runs only while the other thread is in the store."""
    interval = sys.getswitchinterval()
    with terrace_cache.open(tmp_path, memory="64MiB", sync="always") as store:
        bucket, counted, ends = store.bucket("b"), [0], threading.Event()
        big = bytes(8 << 20)

        def count():
            while not ends.is_set():
                counted[0] += 1
                time.sleep(0)

        counter = threading.Thread(target=count)
        sys.setswitchinterval(1000)
        try:
            counter.start()
            calls = {
                "put": lambda: bucket.put("k", big),
                "put_at": lambda: bucket.put_at("k", 4096, big),
                "append": lambda: bucket.append("l", big),
                "get": lambda: bucket["k"],
                "readinto": lambda: bucket.readinto("k", bytearray(8 << 20)),
            }
            for name, call in calls.items():
                before = counted[0]
                for _ in range(20):
                    call()
                assert counted[0] > before, f"nobody ran during {name}"
        finally:
            ends.set()
            sys.setswitchinterval(interval)
            counter.join()


@pytest.mark.parametrize("shown", (bytearray, memoryview, lambda base: memoryview(base).toreadonly(), lambda base: readonly_array(base)))
def test_a_buffer_is_put_as_it_was_at_one_moment(bucket, shown):
    """Another thread fills the memory in steps that the interpreter does not interrupt: the blob has one fill, not a mix."""
    base, ends = bytearray(2 << 20), threading.Event()
    fills = [bytes([i]) * len(base) for i in range(4)]

    def fill():
        while not ends.is_set():
            for one in fills:
                base[:] = one

    value = base if shown is bytearray else shown(base)
    writer = threading.Thread(target=fill)
    writer.start()
    try:
        for i in range(150):
            bucket["k"] = value
            assert bucket["k"] in fills, f"put {i} is a mix"
    finally:
        ends.set()
        writer.join()


def readonly_array(base):
    array = numpy.frombuffer(base, "u1")
    array.flags.writeable = False
    return array


def in_child(f):
    """Exit status of a forked process that runs `f` and exits like Python."""
    child = os.fork()
    if child == 0:
        # A process that hangs fails.
        signal.alarm(60)
        status = 1
        try:
            f()
            status = 0
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_a_forked_process_leaves_the_store_alone(tmp_path):
    store = terrace_cache.open(tmp_path, memory="32MiB")
    bucket = store.bucket("b")
    bucket["k"] = b"v"

    def child():
        for call in (lambda: bucket["k"], lambda: bucket.put("k", b"x"), store.sync, store.close, lambda: len(bucket)):
            with pytest.raises(errors.ForkedError, match="before this process was forked"):
                call()
        with pytest.raises(errors.StoreInUseError):
            terrace_cache.open(tmp_path, memory="32MiB")
        other = tmp_path / "other"
        other.mkdir(exist_ok=True)
        with terrace_cache.open(other, memory="32MiB") as own:
            own.bucket("b")["k"] = b"own"
            assert own["b"]["k"] == b"own"

    # A fixed fault lost wake-ups of the child's own store, once in about twenty forks.
    for _ in range(30):
        assert in_child(child) == 0

    def dropping():
        nonlocal bucket, store
        del bucket, store

    assert in_child(dropping) == 0
    bucket["l"] = b"w"
    store.close()
    with terrace_cache.open(tmp_path, memory="32MiB") as store:
        assert dict(store["b"]) == {"k": b"v", "l": b"w"}


def test_a_forked_process_keeps_no_store_in_use(tmp_path):
    read, write = os.pipe()
    store = terrace_cache.open(tmp_path, memory="32MiB")
    child = os.fork()
    if child == 0:
        os.read(read, 1)
        os._exit(0)
    try:
        store.close()
        terrace_cache.open(tmp_path, memory="32MiB").close()
    finally:
        os.write(write, b"x")
        os.waitpid(child, 0)


def test_closing_waits_for_calls_under_way(tmp_path):
    store = terrace_cache.open(tmp_path, memory="64MiB")
    bucket, seen = store.bucket("b"), []

    def put():
        try:
            for i in range(10_000):
                bucket[f"{i}"] = bytes(100_000)
                seen.append(i)
        except errors.StoreClosedError:
            pass

    thread = threading.Thread(target=put)
    thread.start()
    while len(seen) < 20:
        time.sleep(0.001)
    store.close()
    thread.join()
    with terrace_cache.open(tmp_path, memory="64MiB") as store:
        assert len(store["b"]) == len(seen) and all(store["b"].size(f"{i}") == 100_000 for i in seen)
