"""The hub's own settings under a test's environment: nothing is read from `.env`, and the default database is throw-away.

`DATABASE_URL` chooses the engine, as everywhere. On SQLite the test database is a file, not memory: threads and other
processes of a test share it.
"""

import os
import tempfile
from pathlib import Path

_folder = Path(tempfile.gettempdir()) / f"parley-tests-{os.getuid()}"
_folder.mkdir(mode=0o700, exist_ok=True)

os.environ["PARLEY_ENV_FILE"] = os.devnull
os.environ.setdefault("SECRET_KEY", "only-for-tests-" + "0123456789abcdef" * 4)
os.environ.setdefault("PUBLIC_URL", "http://127.0.0.1:8000")
os.environ.setdefault("DATABASE_URL", f"sqlite:///{_folder}/unused.sqlite3")

from config.settings import *  # noqa: E402, F403
from config.settings import DATABASES  # noqa: E402

if DATABASES["default"]["ENGINE"] == "django.db.backends.sqlite3":
    # One file per run, as several runs may share a machine.
    DATABASES["default"]["TEST"] = {"NAME": f"{_folder}/test-{os.getpid()}.sqlite3"}
else:
    DATABASES["default"]["ENGINE"] = "tests.quick_postgresql"

# The real one takes a tenth of a second on purpose.
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
