"""Upgrades of running jobs: savepoint, check, migration, proof, start, watch, or back."""
