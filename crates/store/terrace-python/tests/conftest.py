import pytest
import terrace_cache


@pytest.fixture
def store(tmp_path):
    with terrace_cache.open(tmp_path, memory="32MiB") as store:
        yield store


@pytest.fixture
def bucket(store):
    return store.bucket("b")
