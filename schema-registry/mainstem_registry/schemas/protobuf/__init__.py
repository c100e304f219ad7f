"""Protobuf: `.proto` texts to descriptors and back, imports, and who can read what. Pure."""
