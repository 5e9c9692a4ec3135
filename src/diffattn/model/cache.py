"""What decoding remembers, in buffers whose shape never changes."""


class Cache:
    """Keys and values of a batch of sequences."""
