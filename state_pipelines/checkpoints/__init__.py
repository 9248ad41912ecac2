"""Checkpoints of a job that runs here: their options, their life from pending to subsumed, their files.

The coordinator knows neither Spark nor functions. Tasks acknowledge or decline, the owner forwards notifications.
"""
