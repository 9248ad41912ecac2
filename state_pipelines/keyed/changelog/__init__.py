"""The changelog state backend: a materialized base and the changes logged since."""
