"""SQLite in both journal modes: rows are written, updated and rolled back, and the file passes its integrity check."""

import sqlite3

for mode in ("delete", "wal"):
    try:
        database = sqlite3.connect(f"{mode}.db", timeout=30)
        if database.execute(f"PRAGMA journal_mode={mode}").fetchone()[0] != mode:
            print(mode, "is not available")
            continue
        database.execute("CREATE TABLE rows (id INTEGER PRIMARY KEY, text TEXT)")
        for batch in range(5):
            with database:
                database.executemany("INSERT INTO rows (text) VALUES (?)", ((f"{batch}:{n}" * 20,) for n in range(100)))
        with database:
            database.execute("UPDATE rows SET text = 'changed' WHERE id % 3 = 0")
        try:
            with database:
                database.execute("DELETE FROM rows")
                raise ValueError("roll back")
        except ValueError:
            pass
        count = database.execute("SELECT count(*), sum(length(text)) FROM rows").fetchone()
        print(mode, database.execute("PRAGMA integrity_check").fetchone()[0], count)
        database.close()
        again = sqlite3.connect(f"{mode}.db", timeout=30)
        print(mode, again.execute("SELECT count(*), sum(length(text)) FROM rows").fetchone())
        again.close()
    except sqlite3.Error as error:
        print(mode, error)
