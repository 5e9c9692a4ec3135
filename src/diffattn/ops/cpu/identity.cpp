// What a library says of itself, so that a stale or wrong build is named instead of used.
#include "kernel.h"

extern "C" const char* diffattn_source_hash() { return DIFFATTN_SOURCE_HASH; }
extern "C" const char* diffattn_isa() { return DIFFATTN_ISA; }
