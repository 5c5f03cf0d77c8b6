/* The least that any recorder pays per callback: one reading of the counter, and one store of a record's 64 bytes into a
 * ring that is as long as ours. */
#ifndef LOCKSTEP_TESTS_LIMIT_H
#define LOCKSTEP_TESTS_LIMIT_H

#include "../wire.h"

#include <stdint.h>

struct slot {
    uint64_t words[8];
};

struct limit {
    struct slot *ring;
    uint64_t head;
};

static inline uint64_t read_counter(void)
{
#if defined(__x86_64__)
    return __builtin_ia32_rdtsc();
#else
    uint64_t ticks;

    __asm__ volatile("mrs %0, cntvct_el0" : "=r"(ticks));
    return ticks;
#endif
}

/* As long as a record, and as much called as a callback. */
static int record_at_least(struct limit *limit, uint64_t value)
{
    const uint64_t now = read_counter();

    limit->ring[limit->head++ % WIRE_RING_RECORDS] =
        (struct slot){{now, value, value, value, value, value, value, limit->head}};
    return 0;
}

static int (*volatile called_limit)(struct limit *, uint64_t) = record_at_least;

#endif
