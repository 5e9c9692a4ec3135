"""`diffattn bench`: what attention, a training step and decoding cost on this machine, next to what others do."""
