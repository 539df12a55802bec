"""Blobs in buckets: like a dict, in parts, into an array, with tags. Usage: buckets.py DIR"""

import sys

import numpy
import terrace_cache

with terrace_cache.open(sys.argv[1], memory="64MiB") as store:
    planets = store.bucket("planets")
    planets["earth"] = b"blue"
    planets.append("earth", b" and green")
    planets["mars"] = b"red"
    planets.tag("mars", "dusty")
    print(planets["earth"].decode(), sorted(planets), store.tagged("dusty"))

    # A NumPy array is stored as it is in memory, and read without a second copy: `frombuffer` is a view of the bytes.
    field = numpy.arange(1_000_000, dtype=numpy.float32)
    planets["field"] = field
    same = numpy.frombuffer(planets["field"], dtype=numpy.float32)
    # A part of it, into an existing array.
    part = numpy.empty(10, dtype=numpy.float32)
    planets.readinto("field", part, offset=4 * 500_000)
    print(numpy.array_equal(field, same), part[:3].tolist())

try:
    planets["earth"]
except terrace_cache.errors.StoreClosedError as e:
    print(e.strerror)
