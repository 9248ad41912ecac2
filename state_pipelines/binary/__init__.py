"""Java `DataInput`/`DataOutput` encodings, Java serialization streams, snappy framing: readers beside writers."""
