"""Settings, all from the environment or from `.env` beside `manage.py` (the environment wins).

`make run` writes such a file for a hub on this machine. Without one, each setting that guards the hub has to be given:
a missing one stops the start with a sentence that says what to set. There is no development mode that opens anything.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import dj_database_url
from django.core.exceptions import ImproperlyConfigured
from environs import Env

BASE_DIR = Path(__file__).resolve().parent.parent

env = Env()
env.read_env(os.environ.get("PARLEY_ENV_FILE", str(BASE_DIR / ".env")), recurse=False)


def required(name: str, what: str) -> str:
    value = env.str(name, "")
    if not value:
        raise ImproperlyConfigured(
            f"Set {name} ({what}), in the environment or in .env beside manage.py. To try Parley on this machine, "
            "`make run` writes that file for you; for a team see README.md, 'Settings'."
        )
    return value


SECRET_KEY = required("SECRET_KEY", "a random string of at least 50 characters that nobody else knows")
if len(SECRET_KEY) < 50 or SECRET_KEY.startswith("django-insecure-"):
    raise ImproperlyConfigured(
        "SECRET_KEY must be random and have at least 50 characters; the hub does not start with less."
    )
SECRET_KEY_FALLBACKS: list[str] = env.list("SECRET_KEY_FALLBACKS", [])

# Under which address people and agents reach the hub, without a slash at the end.
PUBLIC_URL = required(
    "PUBLIC_URL", "the address under which agents reach the hub, like https://parley.example.org"
).rstrip("/")
_public = urlsplit(PUBLIC_URL)
_loopback = _public.hostname in {"127.0.0.1", "localhost", "::1"}
if _public.scheme not in {"http", "https"} or not _public.hostname:
    raise ImproperlyConfigured("PUBLIC_URL must be a whole http(s) address, like https://parley.example.org")
if _public.scheme == "http" and not _loopback and not env.bool("ALLOW_PLAIN_HTTP", False):
    raise ImproperlyConfigured(
        "PUBLIC_URL is plain http on an address that others reach: tokens would cross the network readable. Use https, or set "
        "ALLOW_PLAIN_HTTP=1 where the network itself is private and encrypted."
    )

DEBUG = False
# On this machine all three of its own names; a browser's address bar knows no difference.
_own_names = ["127.0.0.1", "localhost", "[::1]"] if _loopback else [_public.hostname]
ALLOWED_HOSTS: list[str] = env.list("ALLOWED_HOSTS", _own_names)
if "*" in ALLOWED_HOSTS:
    raise ImproperlyConfigured("ALLOWED_HOSTS must name the hub's hosts: `*` would let any page on the web talk to it.")
CSRF_TRUSTED_ORIGINS = [f"{_public.scheme}://{_public.netloc}"]

INSTALLED_APPS = [
    "daphne",
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "django.contrib.postgres",
    "channels",
    "rest_framework",
    "drf_spectacular",
    "drf_spectacular_sidecar",
    "mcp_server",
    "config",
    "messaging",
    "agents.connections",
    "agents.mcp",
    "agents.rest",
    "canvas",
]

MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "config.static_files.StaticFilesMiddleware",
    "csp.middleware.CSPMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
]

ROOT_URLCONF = "config.urls"
ASGI_APPLICATION = "config.asgi.application"
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [BASE_DIR / "templates"],
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]

# --- Database -------------------------------------------------------------------------------------------------------

# Connections that Django itself (HTTP API, admin, commands) may hold in one process, and those of the long-poll doors.
DATABASE_POOL_MAX = env.int("DATABASE_POOL_MAX", 10)
DOOR_POOL_MAX = env.int("DOOR_POOL_MAX", 10)
# A transaction that cannot lock a row within 3 s gives up with the error `busy`: the holder is stuck, not slow.
LOCK_TIMEOUT_MS = 3_000

_database: Any = dj_database_url.parse(
    required("DATABASE_URL", "postgres://user:password@host/name for a team, or sqlite:////path/to/parley.sqlite3")
)
if _database["ENGINE"] == "django.db.backends.postgresql":
    _database["OPTIONS"] = {
        **_database.get("OPTIONS", {}),
        # An attempt to reconnect is given up after 2 s, and begun anew by the next call: the pool's own pauses between attempts
        # grow to minutes, and would outlast the outage by as much.
        "pool": {"min_size": 1, "max_size": DATABASE_POOL_MAX, "timeout": 5, "reconnect_timeout": 2},
        "options": f"-c lock_timeout={LOCK_TIMEOUT_MS}",
        "connect_timeout": 3,
    }
    # A pooled connection is asked whether it still lives before it is used: a restarted database is then not noticed.
    _database["CONN_HEALTH_CHECKS"] = True
elif _database["ENGINE"] == "django.db.backends.sqlite3":
    _database["OPTIONS"] = {
        "transaction_mode": "IMMEDIATE",
        # 20 s: writers queue here; longer than any queue seen, shorter than a client's patience (60 s).
        "timeout": 20,
        # FULL: an answered send survives a power cut, not only a crash of the process.
        "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL;",
    }
    # Kept open: a file needs no hand-back, and opening costs more than most calls.
    _database["CONN_MAX_AGE"] = None
else:
    raise ImproperlyConfigured(
        "DATABASE_URL must be postgres:// or sqlite://; Parley's statements are written for these two."
    )
DATABASES = {"default": _database}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

# A direct way to PostgreSQL for LISTEN, where DATABASE_URL leads through a pgbouncer.
DOORBELL_DATABASE_URL = env.str("DOORBELL_DATABASE_URL", "")

# --- Limits ---------------------------------------------------------------------------------------------------------

# 600 a minute: an agent that works makes a few calls a second at most; a loop gone wild is stopped within a minute.
RATE_LIMIT_PER_MINUTE = env.int("RATE_LIMIT_PER_MINUTE", 600)
# 1 MiB: the largest honest call is a body of 20,000 characters, at most 240 kB when JSON escapes each of them.
MAX_REQUEST_BYTES = 1_048_576
DATA_UPLOAD_MAX_MEMORY_SIZE = MAX_REQUEST_BYTES

# --- HTTP API and MCP -----------------------------------------------------------------------------------------------

REST_FRAMEWORK = {
    "DEFAULT_AUTHENTICATION_CLASSES": [
        "agents.rest.authentication.ByToken",
        "agents.rest.authentication.BySession",
    ],
    "DEFAULT_PERMISSION_CLASSES": ["agents.rest.authentication.IsKnown"],
    "DEFAULT_RENDERER_CLASSES": ["agents.rest.answers.Json"],
    "DEFAULT_PARSER_CLASSES": ["agents.rest.answers.JsonObject"],
    "DEFAULT_CONTENT_NEGOTIATION_CLASS": "agents.rest.answers.AlwaysJson",
    "DEFAULT_SCHEMA_CLASS": "drf_spectacular.openapi.AutoSchema",
    "EXCEPTION_HANDLER": "agents.rest.answers.refused",
    "UNAUTHENTICATED_USER": None,
}
SPECTACULAR_SETTINGS = {
    "TITLE": "Parley",
    "VERSION": "1",
    "OAS_VERSION": "3.1.0",
    "POSTPROCESSING_HOOKS": ["agents.rest.openapi.complete"],
}
DJANGO_MCP_GET_SERVER_INSTRUCTIONS_TOOL = False
DJANGO_MCP_GLOBAL_SERVER_CONFIG = {"name": "parley", "stateless": True}

# --- Security -------------------------------------------------------------------------------------------------------

_https = _public.scheme == "https"
SESSION_COOKIE_SECURE = CSRF_COOKIE_SECURE = _https
SECURE_SSL_REDIRECT = False  # The proxy in front of the hub speaks TLS; it redirects.
SECURE_HSTS_SECONDS = env.int("SECURE_HSTS_SECONDS", 3600 if _https else 0)
SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https") if env.bool("BEHIND_PROXY", False) else None
SILENCED_SYSTEM_CHECKS = [
    "security.W005",  # Other hosts of the domain are not the hub's to bind to https.
    "security.W008",  # The proxy redirects, see above.
    "security.W021",  # Whether browsers preload the domain is its owner's decision.
]
X_FRAME_OPTIONS = "DENY"
# Pages load only what the hub itself serves, and nothing inline: what an agent writes can never become a script.
CONTENT_SECURITY_POLICY = {
    "DIRECTIVES": {
        "default-src": ["'none'"],
        "script-src": ["'self'"],
        "style-src": ["'self'"],
        "img-src": ["'self'", "data:"],
        "font-src": ["'self'"],
        "connect-src": ["'self'"],
        "form-action": ["'self'"],
        "base-uri": ["'none'"],
        "frame-ancestors": ["'none'"],
    }
}
SECURE_REFERRER_POLICY = "same-origin"
AUTH_PASSWORD_VALIDATORS = [
    {"NAME": f"django.contrib.auth.password_validation.{name}"}
    for name in ("UserAttributeSimilarityValidator", "MinimumLengthValidator", "CommonPasswordValidator")
]
LOGIN_URL = "admin:login"

# --- The rest -------------------------------------------------------------------------------------------------------

LANGUAGE_CODE = "en"
USE_I18N = False
USE_TZ = True
TIME_ZONE = "UTC"
FORMAT_MODULE_PATH = ["config.formats"]
STATIC_URL = "static/"
STATICFILES_DIRS = [BASE_DIR / "static"]
# The hub serves its few files from where they lie. Only a proxy that shall serve them needs a folder to collect them in.
STATIC_ROOT = env.str("STATIC_ROOT", "") or None
WHITENOISE_USE_FINDERS = True
WHITENOISE_ALLOW_ALL_ORIGINS = False

LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {
        "line": {"class": "config.logs.WithoutTokens", "format": "%(asctime)s %(levelname)s %(name)s: %(message)s"}
    },
    "handlers": {"console": {"class": "logging.StreamHandler", "formatter": "line"}},
    "root": {"handlers": ["console"], "level": env.str("LOG_LEVEL", "INFO")},
}
