"""Protobuf and Thrift messages, as the serializers of chill write them."""
