/* Keeps what the job pays below the budget.
 *
 * Two measures. The first is our own: one callback in 64 is timed, and the busiest thread's share of time in callbacks
 * counts. The second is the job's: over windows of 64 operations on the largest communicator, detail is taken away and
 * given back in turns, and the windows' lengths are compared in pairs. All ranks take their turns by NCCL's own sequence
 * number, so that they switch together. Above the budget, detail goes down one level and stays there until asked again.
 */
#include "plugin.h"

#include <string.h>

enum {
    WINDOW = 64,            /* operations */
    CYCLE = 256,            /* windows from one experiment to the next */
    EXPERIMENT_BEGIN = 16,  /* the first windows of a job warm up */
    EXPERIMENT_WINDOWS = 16,
    KEPT = 64,              /* pairs that the figure rests on at most */
    LEAST = 8,              /* pairs before it means anything */
    DEAR_LOOKS = 3,         /* seconds in a row before the first measure counts */
};

static struct {
    uint32_t budget_ppm;
    uint8_t func;  /* the function that counts the windows: the first that fills one */
    uint64_t window;
    uint64_t window_began;
    uint64_t with_detail; /* length of the pair's first finished half, by role */
    uint64_t without;
    uint32_t pairs; /* ever */
    float ratios[KEPT];
    uint32_t dear;
    uint64_t looked;
    uint64_t callbacks[MAX_RINGS];
} governor;

static uint32_t busy; /* one thread at a time; whoever finds it taken leaves the work for the next time */

bool governor_enter(void) { return __atomic_exchange_n(&busy, 1, __ATOMIC_ACQUIRE) == 0; }

void governor_leave(void) { __atomic_store_n(&busy, 0, __ATOMIC_RELEASE); }

void governor_reset(uint32_t budget_ppm)
{
    memset(&governor, 0, sizeof governor);
    STORE(governor.budget_ppm, budget_ppm);
}

static void lower(enum wire_lowered why)
{
    if (LOAD(session.level) <= WIRE_OPERATIONS)
        return;
    session_set_level(LOAD(session.level) - 1);
    STORE(session.status->lowered, (uint32_t)why);
    governor.pairs = 0;
    governor.dear = 0;
}

/* ABBA and so on: in every two pairs each role comes first once, so that a steady drift cancels. */
static bool takes_detail_away(uint64_t window)
{
    const uint64_t turn = window % CYCLE - EXPERIMENT_BEGIN;

    return turn < EXPERIMENT_WINDOWS && ((turn ^ turn >> 1) & 1);
}

static bool is_experiment(uint64_t window) { return window % CYCLE - EXPERIMENT_BEGIN < EXPERIMENT_WINDOWS; }

static void sort(float *values, uint32_t count)
{
    for (uint32_t i = 1; i < count; i++)
        for (uint32_t j = i; j > 0 && values[j] < values[j - 1]; j--) {
            const float swapped = values[j];

            values[j] = values[j - 1];
            values[j - 1] = swapped;
        }
}

static uint32_t root(uint32_t number)
{
    uint32_t guess = 0;

    while ((guess + 1) * (guess + 1) <= number)
        guess++;
    return guess;
}

/* The median of the pairs, with the order statistics that hold it in 95 of 100 cases. */
static void judge(void)
{
    const uint32_t count = governor.pairs < KEPT ? governor.pairs : KEPT;
    const uint32_t reach = root(count); /* 0.98 times the root, rounded up */
    float sorted[KEPT], low, high;

    if (count < LEAST)
        return;
    memcpy(sorted, governor.ratios, count * sizeof sorted[0]);
    sort(sorted, count);
    low = sorted[count / 2 - (reach < count / 2 ? reach : count / 2)];
    high = sorted[count / 2 + reach < count ? count / 2 + reach : count - 1];
    STORE(session.status->paid_ppm, (int32_t)(sorted[count / 2] * 1e6F));
    STORE(session.status->paid_error_ppm, (uint32_t)((high - low) / 2 * 1e6F));
    STORE(session.status->paid_pairs, governor.pairs);
    if (low * 1e6F > (float)governor.budget_ppm)
        lower(WIRE_LOWERED_BY_JOB);
}

static void note_length(uint64_t window, uint64_t length)
{
    const bool second_half = (window % CYCLE - EXPERIMENT_BEGIN) & 1;

    *(takes_detail_away(window) ? &governor.without : &governor.with_detail) = length;
    if (!second_half || governor.without == 0 || governor.with_detail == 0)
        return;
    governor.ratios[governor.pairs++ % KEPT] = (float)governor.with_detail / (float)governor.without - 1.0F;
    governor.without = governor.with_detail = 0;
    judge();
}

static void window_begins(uint64_t window, uint64_t now)
{
    const uint64_t before = governor.window;

    if (window == before + 1 && is_experiment(before))
        note_length(before, now - governor.window_began);
    else
        governor.without = governor.with_detail = 0;
    governor.window = window;
    governor.window_began = now;
    if (LOAD(session.level) <= WIRE_OPERATIONS || LOAD(session.level) == WIRE_TRACE)
        return;
    if (is_experiment(window) || is_experiment(before))
        session_experiment(takes_detail_away(window) ? (uint32_t)WIRE_OPERATIONS : LOAD(session.level));
}

void governor_operation(uint32_t comm, uint8_t func, uint64_t seq, uint64_t now)
{
    if (comm != LOAD(session.lead) || seq % WINDOW != 0 || seq == 0 || !governor_enter())
        return;
    if (governor.func == 0)
        governor.func = func;
    if (governor.func == func && governor.budget_ppm != 0)
        window_begins(seq / WINDOW, now);
    governor_leave();
}

/* Time in callbacks on the busiest thread since the last look, in millionths. */
static uint32_t busiest_ppm(uint64_t elapsed)
{
    uint64_t most = 0;

    for (uint32_t i = 0; i < session.rings; i++) {
        const struct wire_ring *ring = producers[i].ring;
        const uint64_t callbacks = LOAD(ring->callbacks), timed = LOAD(ring->sampled_callbacks);
        const uint64_t spent = timed == 0 ? 0 : (callbacks - governor.callbacks[i]) * LOAD(ring->sampled_ticks) / timed;

        governor.callbacks[i] = callbacks;
        most = spent > most ? spent : most;
    }
    return elapsed == 0 ? 0 : (uint32_t)(most * 1000000 / elapsed);
}

void governor_look(uint64_t now)
{
    uint32_t ppm;

    if (!governor_enter())
        return;
    ppm = governor.looked == 0 ? 0 : busiest_ppm(now - governor.looked);
    governor.looked = now;
    STORE(session.status->callback_ppm, ppm);
    governor.dear = governor.budget_ppm != 0 && ppm > governor.budget_ppm ? governor.dear + 1 : 0;
    if (governor.dear >= DEAR_LOOKS)
        lower(WIRE_LOWERED_BY_CALLBACKS);
    governor_leave();
}
