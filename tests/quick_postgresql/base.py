"""Django's PostgreSQL backend, but emptying tables by DELETE: what most tests do at their end.

TRUNCATE gives each table and index a new file, which takes seconds on a busy disk; a test leaves a few rows. Django's foreign
keys are checked at the commit, so the order of tables does not matter.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from django.db.backends.postgresql import base, operations


class DatabaseOperations(operations.DatabaseOperations):
    def sql_flush(self, style: Any, tables: Iterable[str], **options: Any) -> list[str]:
        return [f"DELETE FROM {self.quote_name(table)}" for table in tables]


class DatabaseWrapper(base.DatabaseWrapper):
    ops_class = DatabaseOperations
