/* Keeps what the job pays below the budget.
 *
 * Two measures. The first is our own: one callback in 64 is timed, and the busiest thread's share of time in callbacks
 * counts. The second is the job's: for 16 operations at a time on the largest communicator, detail is taken away, and
 * what they took is compared with the 16 beside them. All ranks do so by NCCL's own sequence number: a job goes as fast
 * as its slowest rank, so that one rank alone without detail would show nothing. Operations without detail carry
 * WIRE_FLAG_UNTIMED. By the first measure detail goes down one level and stays there until asked again. By the second a
 * rank only tells that the cost surely lies above the budget: it is the whole job's, and so is the decision.
 */
#include "plugin.h"

#include <string.h>

enum {
    WINDOW = 16,    /* operations */
    BLOCK = 64,     /* windows; in two of them detail is away; in the first block a job warms up */
    COMPARED = 6,   /* windows from the first that is measured to the last */
    OFTEN = 32,     /* the first blocks are all measured, then one in RARELY: what is known to be cheap is left alone */
    RARELY = 8,
    HOLE_PARTS = 2, /* of a second: longer than such a part nobody goes without detail */
    KEPT = 64,      /* blocks that the figure rests on at most */
    LEAST = 8,      /* blocks before it means anything */
    DEAR_LOOKS = 3, /* seconds in a row before the first measure counts */
};

static struct {
    uint32_t budget_ppm;
    uint8_t func;  /* the function that counts the windows: the first that fills one */
    uint64_t window;
    uint64_t window_began;
    uint64_t with_detail; /* what the windows of this block took that are over, by role */
    uint64_t without;
    uint32_t measured; /* so many of them */
    uint32_t blocks;   /* ever measured at this level */
    float ratios[KEPT];
    uint32_t dear;
    uint64_t looked;
    uint64_t callbacks[MOST_RINGS];
} governor;

static uint64_t hole_end; /* detail is away until then at the latest; 0: it is not. Read by all threads */
static uint32_t busy;     /* one thread at a time; whoever finds it taken leaves the work for the next time */

bool governor_enter(void) { return __atomic_exchange_n(&busy, 1, __ATOMIC_ACQUIRE) == 0; }

void governor_leave(void) { __atomic_store_n(&busy, 0, __ATOMIC_RELEASE); }

/* What the job pays at another level is not known yet. */
static void forget_pace(void)
{
    governor.blocks = 0;
    STORE(session.status->paid_pairs, 0);
    STORE(session.status->dear, 0);
}

void governor_reset(uint32_t budget_ppm)
{
    memset(&governor, 0, sizeof governor);
    governor.budget_ppm = budget_ppm;
    STORE(hole_end, 0);
    forget_pace();
}

static void lower(void)
{
    if (LOAD(session.level) <= WIRE_OPERATIONS)
        return;
    session_set_level(LOAD(session.level) - 1);
    STORE(session.status->lowered, WIRE_LOWERED_BY_CALLBACKS);
    forget_pace();
    governor.dear = 0;
}

static uint64_t scatter(uint64_t number)
{
    number = (number ^ number >> 32) * UINT64_C(0xBF58476D1CE4E5B9);
    return number ^ number >> 29;
}

/* Which of its block's compared windows this one is; COMPARED or more: none. Where they begin differs from block to
 * block, so that they fall on no particular part of the job's steps. */
static uint64_t turn_of(uint64_t window)
{
    const uint64_t block = window / BLOCK;

    return block == 0 || (block > OFTEN && block % RARELY != 0) ? COMPARED : window % BLOCK - scatter(block) % (BLOCK - COMPARED);
}

/* Turns 0 and 5 are compared with 1 and 4: a steady drift cancels, and so does what comes round every 64 operations. */
static bool is_measured(uint64_t window)
{
    const uint64_t turn = turn_of(window);

    return turn < COMPARED && turn != 2 && turn != 3;
}

static bool takes_detail_away(uint64_t window)
{
    const uint64_t turn = turn_of(window);

    return is_measured(window) && (turn == 0 || turn == 5) == (scatter(window / BLOCK) >> 40 & 1);
}

static void sort(float *values, uint32_t count)
{
    for (uint32_t i = 1; i < count; i++)
        for (uint32_t j = i; j > 0 && values[j] < values[j - 1]; j--) {
            const float swapped = values[j];

            values[j] = values[j - 1];
            values[j - 1] = swapped;
        }
}

/* The least whole number whose square is not below. */
static uint32_t root(uint32_t number)
{
    uint32_t guess = 0;

    while (guess * guess < number)
        guess++;
    return guess;
}

/* The median of the blocks with the order statistics that hold it in 95 of 100 cases (0.98 times the root to either
 * side). The job pays too much when it lies above the budget with a chance of error of 3 in a million (2.25 times the
 * root: at least 22 blocks): all ranks ask after every block, for as long as the job runs. */
static void judge(void)
{
    const uint32_t count = governor.blocks < KEPT ? governor.blocks : KEPT;
    const uint32_t middle = count / 2, reach = root(count), sure = (root(81 * count) + 3) / 4;
    float sorted[KEPT], low, high;

    if (count < LEAST)
        return;
    memcpy(sorted, governor.ratios, count * sizeof sorted[0]);
    sort(sorted, count);
    low = sorted[reach < middle ? middle - reach : 0];
    high = sorted[middle + reach < count ? middle + reach : count - 1];
    STORE(session.status->paid_ppm, (int32_t)(sorted[middle] * 1e6F));
    STORE(session.status->paid_error_ppm, (uint32_t)((high - low) / 2 * 1e6F));
    STORE(session.status->paid_pairs, 2 * governor.blocks);
    STORE(session.status->dear, sure <= middle && sorted[middle - sure] * 1e6F > (float)governor.budget_ppm);
}

static void forget_block(void) { governor.without = governor.with_detail = governor.measured = 0; }

static void note_length(uint64_t window, uint64_t length)
{
    if (!is_measured(window))
        return;
    *(takes_detail_away(window) ? &governor.without : &governor.with_detail) += length;
    governor.measured++;
    if (turn_of(window) != COMPARED - 1)
        return;
    if (governor.measured == COMPARED - 2 && governor.without != 0) {
        governor.ratios[governor.blocks++ % KEPT] = (float)governor.with_detail / (float)governor.without - 1.0F;
        judge();
    }
    forget_block();
}

static void give_back(void)
{
    STORE(hole_end, 0);
    session_experiment(LOAD(session.level));
}

static void window_begins(uint64_t window, uint64_t now)
{
    const uint64_t longest = session.ticks_per_second / HOLE_PARTS, length = now - governor.window_began;
    const bool measures = LOAD(session.level) > WIRE_OPERATIONS && LOAD(session.level) != WIRE_TRACE;
    const bool follows = measures && window == governor.window + 1;

    if (follows)
        note_length(governor.window, length);
    else
        forget_block();
    governor.window = window;
    governor.window_began = now;
    if (LOAD(hole_end) != 0)
        give_back();
    if (!measures || !takes_detail_away(window))
        return;
    if (!follows || length > longest) { /* so slow a job hardly pays for detail, and the first measure sees it */
        governor.window = 0;
        return;
    }
    STORE(hole_end, now + longest);
    session_experiment(WIRE_OPERATIONS);
}

/* Something stalled while detail was away: it comes back, and the block says nothing. */
static void end_long_hole(void)
{
    if (!governor_enter())
        return;
    give_back();
    governor.window = 0;
    governor_leave();
}

void governor_operation(uint32_t comm, uint8_t func, uint64_t seq, uint64_t now)
{
    const uint64_t end = LOAD(hole_end);

    if (UNLIKELY(end != 0 && now > end))
        end_long_hole();
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
        lower();
    governor_leave();
}
