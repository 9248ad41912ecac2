"""Java values: serialized objects, dates and times, typed values."""
