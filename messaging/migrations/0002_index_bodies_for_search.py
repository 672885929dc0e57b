"""Full-text search over bodies: an expression index on PostgreSQL, an FTS5 table kept by triggers on SQLite."""

from django.db import migrations

# A row of the FTS table is found by channel and place, which never change (SQLite may renumber implicit row ids on VACUUM).
ROW = "({0}.channel_id << 40 | {0}.channel_sequence)"

FORWARD = {
    "postgresql": ["CREATE INDEX message_search ON message USING gin (to_tsvector('simple', body))"],
    "sqlite": [
        "CREATE VIRTUAL TABLE message_search USING fts5(body)",
        f"""CREATE TRIGGER message_search_insert AFTER INSERT ON message BEGIN
            INSERT INTO message_search (rowid, body) VALUES ({ROW.format("new")}, new.body); END""",
        f"""CREATE TRIGGER message_search_update AFTER UPDATE OF body ON message BEGIN
            UPDATE message_search SET body = new.body WHERE rowid = {ROW.format("old")}; END""",
        f"""CREATE TRIGGER message_search_delete AFTER DELETE ON message BEGIN
            DELETE FROM message_search WHERE rowid = {ROW.format("old")}; END""",
    ],
}
BACKWARD = {
    "postgresql": ["DROP INDEX message_search"],
    "sqlite": [
        "DROP TRIGGER message_search_insert",
        "DROP TRIGGER message_search_update",
        "DROP TRIGGER message_search_delete",
        "DROP TABLE message_search",
    ],
}


def execute(statements):
    def run(apps, schema_editor):
        for statement in statements[schema_editor.connection.vendor]:
            schema_editor.execute(statement)

    return run


class Migration(migrations.Migration):
    dependencies = [("messaging", "0001_create_tables")]
    operations = [migrations.RunPython(execute(FORWARD), execute(BACKWARD))]
