#!/usr/bin/env python3
"""SQLite as it is by default: 50,000 inserts in 100 transactions, each on stable storage.

    sqlite.py TREE    prints inserts a second; the table is read back and checked
"""

import json
import sqlite3
import sys
import time

TRANSACTIONS, INSERTS = 100, 500

db = sqlite3.connect(f"{sys.argv[1]}/inserts.db", isolation_level=None)
db.execute("create table events (id integer primary key, at real, name text, body text)")
start = time.monotonic()
for t in range(TRANSACTIONS):
    rows = [(n, n / 7, f"name {n % 97}", "x" * (n % 61) + str(n)) for n in range(t * INSERTS, (t + 1) * INSERTS)]
    db.execute("begin")
    db.executemany("insert into events values (?, ?, ?, ?)", rows)
    db.execute("commit")
seconds = time.monotonic() - start
db.close()

db = sqlite3.connect(f"{sys.argv[1]}/inserts.db")
(count, total) = db.execute("select count(*), sum(id) from events").fetchone()
wanted = TRANSACTIONS * INSERTS
(sound,) = db.execute("pragma integrity_check").fetchone()
if (count, total, sound) != (wanted, wanted * (wanted - 1) // 2, "ok"):
    sys.exit(f"the table has {count} rows, their numbers are {total} together, and its check says {sound}")
print(json.dumps({"inserts_per_s": wanted / seconds, "transactions": TRANSACTIONS}))
