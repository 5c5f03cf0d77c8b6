/* One counter for all records: the processor's own where it can be trusted, else the system's monotonic clock. */
#define _GNU_SOURCE

#include "plugin.h"

#include <time.h>
#if defined(__x86_64__)
#include <cpuid.h>
#endif

uint32_t clock_kind = WIRE_CLOCK_MONOTONIC;

static const uint64_t *replayed_now; /* a recorded trace is being played: its clock instead of ours */
static uint64_t replayed_unix_offset;

__attribute__((visibility("default"))) void lockstep_replay_clock(const uint64_t *now_ns, uint64_t unix_minus_now_ns);

/* Play a recorded trace: ticks are the nanoseconds at `now_ns` from here on. Call it before init; NULL ends it. */
void lockstep_replay_clock(const uint64_t *now_ns, uint64_t unix_minus_now_ns)
{
    replayed_now = now_ns;
    replayed_unix_offset = unix_minus_now_ns;
    clock_choose();
}

static uint64_t nanoseconds(clockid_t which)
{
    struct timespec now;

    clock_gettime(which, &now);
    return (uint64_t)now.tv_sec * UINT64_C(1000000000) + (uint64_t)now.tv_nsec;
}

uint64_t clock_slow_ticks(void)
{
    return clock_kind == WIRE_CLOCK_REPLAY ? LOAD(*replayed_now) : nanoseconds(CLOCK_MONOTONIC);
}

/* The time-stamp counter serves when it runs at one rate in every power state, on every core. */
static uint32_t best_counter(void)
{
#if defined(__x86_64__)
    unsigned a, b, c, d;
    const bool invariant = __get_cpuid(0x80000007, &a, &b, &c, &d) && (d & 1u << 8);

    return invariant ? WIRE_CLOCK_TSC : WIRE_CLOCK_MONOTONIC;
#else
    return WIRE_CLOCK_CNTVCT;
#endif
}

void clock_choose(void)
{
    clock_kind = replayed_now != NULL ? (uint32_t)WIRE_CLOCK_REPLAY : best_counter();
}

/* UNIX time between two readings of the counter; of three tries the tightest. */
void clock_read_pair(struct wire_clock_pair *pair)
{
    pair->error_ticks = UINT64_MAX;
    for (int attempt = 0; attempt < 3; attempt++) {
        const uint64_t before = clock_ticks();
        const uint64_t unix_ns =
            clock_kind == WIRE_CLOCK_REPLAY ? before + replayed_unix_offset : nanoseconds(CLOCK_REALTIME);
        const uint64_t after = clock_ticks();

        if (after - before < pair->error_ticks) {
            pair->ticks = before + (after - before) / 2;
            pair->unix_ns = unix_ns;
            pair->error_ticks = after - before;
        }
    }
}

void clock_publish_pair(const struct wire_clock_pair *pair)
{
    const uint64_t number = ADD(session.clock_pairs, 1);
    struct wire_clock_pair *place = &session.clocks[number % WIRE_CLOCK_PAIRS];

    STORE(place->stamp, 0);
    __atomic_thread_fence(__ATOMIC_RELEASE);
    STORE(place->ticks, pair->ticks);
    STORE(place->unix_ns, pair->unix_ns);
    STORE(place->error_ticks, pair->error_ticks);
    __atomic_store_n(&place->stamp, number + 1, __ATOMIC_RELEASE);
}
