// What a library says of itself, so that a stale or wrong build is named instead of used; and of the processor it is on.
#include <algorithm>
#include <chrono>

#include "kernel.h"

extern "C" const char* diffattn_source_hash() { return DIFFATTN_SOURCE_HASH; }
extern "C" const char* diffattn_isa() { return DIFFATTN_ISA; }

// A chain of 32-bit multiplications, each of which waits 3 cycles for the one before it on every processor that has
// AVX2. The fastest of many short chains, so that what interrupts some of them does not count.
extern "C" double diffattn_clock() {
    using Clock = std::chrono::steady_clock;
    constexpr int TRIES = 64, ROUNDS = 2048, CYCLES = 8 * 3;
    double best = 1.0;
    uint32_t x = 3;
    for (int i = 0; i < TRIES; i++) {
        const auto start = Clock::now();
        for (int round = 0; round < ROUNDS; round++)
            asm volatile(
                "imul %0, %0; imul %0, %0; imul %0, %0; imul %0, %0;"
                "imul %0, %0; imul %0, %0; imul %0, %0; imul %0, %0;"
                : "+r"(x));
        best = std::min(best, std::chrono::duration<double>(Clock::now() - start).count());
    }
    return ROUNDS * CYCLES / best;
}
