"""The code location: assets, checks, partitions, sensors and jobs."""
