"""The contract of SQL: what the columns of every table are."""
