"""From bytes to tables: a recording as Arrow tables and SQL."""
