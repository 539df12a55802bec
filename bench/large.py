#!/usr/bin/env python3
"""Walks and places in a large database, hash and sorted set, over a UNIX socket; see bench/README.md, Large collections.

    large.py fill SOCKET ELEMENTS
    large.py measure SOCKET ELEMENTS REQUESTS   a line `TEST,REQUESTS_PER_SECOND,P50,P99,MAX` (milliseconds) for each test; every reply is checked

Walks (SCAN, HSCAN, ZSCAN with COUNT 10) meet all elements; the other tests send so many requests each. ELEMENTS is below ten million.
"""

import random
import socket
import sys
import time

BATCH = 1000


class Client:
    def __init__(self, path):
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.connect(path)
        self.replies = self.socket.makefile("rb")

    def ask(self, *words):
        words = [word if isinstance(word, bytes) else str(word).encode() for word in words]
        self.socket.sendall(b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in words))
        return self.reply()

    def reply(self):
        line = self.replies.readline()
        kind, rest = line[:1], line[1:-2]
        if kind == b"*":
            return [self.reply() for _ in range(int(rest))]
        if kind == b"$":
            return None if rest == b"-1" else self.replies.read(int(rest) + 2)[:-2]
        if kind == b"-" or not kind:
            sys.exit(f"large.py: the server answers {rest.decode()!r}")
        return int(rest) if kind == b":" else rest


def member(number):
    return b"member:%07d" % number


def fill(client, elements):
    client.ask("FLUSHALL")
    for begin in range(0, elements, BATCH):
        names = range(begin, min(begin + BATCH, elements))
        client.ask("MSET", *(word for number in names for word in (member(number), number)))
        client.ask("HSET", "hash", *(word for number in names for word in (member(number), number)))
        client.ask("ZADD", "zset", *(word for number in names for word in (number, member(number))))
        client.ask("ZADD", "names", *(word for number in names for word in (0, member(number))))


def walk(client, elements, head, step, extra):
    """Times of the requests of a walk that meets all."""
    cursor, seen, times = b"0", set(), []
    while not times or cursor != b"0":
        began = time.perf_counter()
        cursor, found = client.ask(*head, cursor, "COUNT", 10)
        times.append(time.perf_counter() - began)
        seen.update(found[::step])
    assert len(seen) == elements + extra, f"{head}: {len(seen)} of {elements + extra}"
    return times


def requests(client, count, make):
    """Times of requests that are made of a random number, each with its reply or a check of it."""
    times = []
    for _ in range(count):
        words, wanted = make()
        began = time.perf_counter()
        reply = client.ask(*words)
        times.append(time.perf_counter() - began)
        assert wanted(reply) if callable(wanted) else reply == wanted, f"{words}: {reply}"
    return times


def tests(elements):
    def number():
        return random.randrange(elements - 10)

    def at(make):
        return lambda: make(number())

    def known(name):
        return name in (b"hash", b"zset", b"names") or 0 <= int(name[-7:]) < elements

    return {
        "ZRANK": at(lambda n: (("ZRANK", "zset", member(n)), n)),
        "ZRANGE of 10 by place": at(lambda n: (("ZRANGE", "zset", n, n + 9), [member(n + i) for i in range(10)])),
        "ZREVRANGE of 10 by place": at(lambda n: (("ZREVRANGE", "zset", n, n + 9), [member(elements - 1 - n - i) for i in range(10)])),
        "ZRANGEBYSCORE of 10": at(lambda n: (("ZRANGEBYSCORE", "zset", n, n + 9), [member(n + i) for i in range(10)])),
        "ZCOUNT": at(lambda n: (("ZCOUNT", "zset", n, "+inf"), elements - n)),
        "ZRANGEBYLEX of 10": at(lambda n: (("ZRANGEBYLEX", "names", b"[" + member(n), b"[" + member(n + 9)), [member(n + i) for i in range(10)])),
        "ZADD of the score it has": at(lambda n: (("ZADD", "zset", n, member(n)), 0)),
        "ZRANDMEMBER": lambda: (("ZRANDMEMBER", "zset"), known),
        "HRANDFIELD": lambda: (("HRANDFIELD", "hash"), known),
        "RANDOMKEY": lambda: (("RANDOMKEY",), known),
    }


def measure(client, elements, count):
    runs = {
        "SCAN": lambda: walk(client, elements, ("SCAN",), 1, 3),
        "HSCAN": lambda: walk(client, elements, ("HSCAN", "hash"), 2, 0),
        "ZSCAN": lambda: walk(client, elements, ("ZSCAN", "zset"), 2, 0),
    }
    runs |= {test: lambda make=make: requests(client, count, make) for test, make in tests(elements).items()}
    for test, run in runs.items():
        times = sorted(run())
        p50, p99, most = (times[min(int(len(times) * part), len(times) - 1)] * 1000 for part in (0.5, 0.99, 1))
        print(f"{test},{len(times) / sum(times):.0f},{p50:.3f},{p99:.3f},{most:.3f}", flush=True)


def main():
    match sys.argv[1:]:
        case ["fill", path, elements]:
            fill(Client(path), int(elements))
        case ["measure", path, elements, count]:
            measure(Client(path), int(elements), int(count))
        case _:
            sys.exit(__doc__)


main()
