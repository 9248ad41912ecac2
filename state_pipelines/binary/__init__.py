"""Readers and writers of Java `DataInput` encodings, Java serialization streams and snappy framing."""
