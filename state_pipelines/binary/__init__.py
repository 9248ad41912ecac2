"""Java `DataInput`/`DataOutput` encodings, Java serialization streams, snappy framing: readers and writers side by side."""
