"""One pre-norm decoder for every attention variant, its cache, generation and named sizes."""

from diffattn.model.cache import Cache
from diffattn.model.config import ModelConfig, ModelCost
from diffattn.model.decoder import Decoder, build

__all__ = ["Cache", "Decoder", "ModelConfig", "ModelCost", "build"]
