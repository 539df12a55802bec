"""Lists the tree of a directory: name, kind, mode, size and digest of each entry."""

import hashlib
import os
import stat
import sys

os.chdir(sys.argv[1])
for directory, names, files in sorted(os.walk(b".")):
    for name in sorted(names + files):
        path = os.path.join(directory, name)
        found = os.lstat(path)
        content = b""
        if stat.S_ISREG(found.st_mode):
            with open(path, "rb") as file:
                content = file.read()
        elif stat.S_ISLNK(found.st_mode):
            content = os.readlink(path)
        size = None if stat.S_ISDIR(found.st_mode) else found.st_size
        print(path, oct(found.st_mode), size, hashlib.sha256(content).hexdigest()[:16])
