/* The communicators of this process, and the rows that count what each has enqueued, started and done. */
#define _GNU_SOURCE

#include "plugin.h"

#include <string.h>

enum { PROBES = 32, CROWDED_ROWS = WIRE_ROWS / 4 * 3 };

#define DEAD_ROW UINT64_MAX /* its communicator is gone: the next one that looks for a place may have it */

static uint64_t row_key(uint32_t comm, uint32_t func, int32_t peer)
{
    return (uint64_t)(comm + 1) << 40 | (uint64_t)func << 32 | (uint32_t)peer;
}

static uint64_t scramble(uint64_t number)
{
    number = (number ^ number >> 31) * UINT64_C(0x9E3779B97F4A7C15);
    return number ^ number >> 29;
}

/* Take the place when nobody was faster. */
static struct wire_row *insert_row(struct wire_row *place, uint64_t key)
{
    uint64_t before = LOAD(place->key);

    if ((before == 0 || before == DEAD_ROW)
        && __atomic_compare_exchange_n(&place->key, &before, key, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
        ADD(session.rows_used, 1);
        return place;
    }
    return before == key ? place : NULL;
}

/* The row of this key, made when it is new; NULL when there is no place near where it belongs. */
struct wire_row *row_find(uint32_t comm, uint32_t func, int32_t peer)
{
    const uint64_t key = row_key(comm, func, peer), home = scramble(key);
    struct wire_row *vacant = NULL, *row;

    if (comm == WIRE_NO_COMM)
        return NULL;
    for (uint64_t i = 0; i < PROBES; i++) {
        row = &session.rows[(home + i) % WIRE_ROWS];
        if (LOAD(row->key) == key)
            return row;
        if (vacant == NULL && (LOAD(row->key) == 0 || LOAD(row->key) == DEAD_ROW))
            vacant = row;
        if (LOAD(row->key) == 0)
            break;
    }
    row = vacant == NULL ? NULL : insert_row(vacant, key);
    if (row == NULL)
        ADD(session.status->refused_rows, 1);
    return row;
}

static void clear_row(struct wire_row *row)
{
    STORE(row->enqueued, 0);
    STORE(row->started, 0);
    STORE(row->done, 0);
    STORE(row->enqueued_ticks, 0);
    STORE(row->started_ticks, 0);
    STORE(row->done_ticks, 0);
    STORE(row->epoch, 0);
    STORE(row->replay, 0);
    __atomic_store_n(&row->key, DEAD_ROW, __ATOMIC_RELEASE);
    ADD(session.rows_used, -1);
}

/* Rows of one communicator, or of all that are gone (WIRE_NO_COMM). */
static void clear_rows(uint32_t comm)
{
    for (uint32_t i = 0; i < WIRE_ROWS; i++) {
        const uint64_t key = LOAD(session.rows[i].key);
        const uint64_t owner = (key >> 40) - 1;

        if (key == 0 || key == DEAD_ROW || owner >= WIRE_COMMS)
            continue;
        if (comm == WIRE_NO_COMM ? LOAD(session.comms[owner].destroy_ticks) != 0 : owner == comm)
            clear_row(&session.rows[i]);
    }
}

/* The place that was given up longest ago; WIRE_NO_COMM when all are in use. */
static uint32_t oldest_gone(void)
{
    uint32_t oldest = WIRE_NO_COMM;

    for (uint32_t i = 0; i < WIRE_COMMS; i++) {
        const uint64_t gone = LOAD(session.comms[i].destroy_ticks);

        if (gone != 0 && (oldest == WIRE_NO_COMM || gone < LOAD(session.comms[oldest].destroy_ticks)))
            oldest = i;
    }
    return oldest;
}

static uint32_t find_place(void)
{
    uint32_t place;

    if (session.comms_used < WIRE_COMMS)
        return session.comms_used++;
    place = oldest_gone();
    if (place != WIRE_NO_COMM)
        clear_rows(place);
    return place;
}

static void fill(struct wire_comm *place, const struct communicator *communicator)
{
    const uint64_t incarnation = LOAD(place->incarnation) + 1;
    const size_t length = communicator->name == NULL ? 0 : strnlen(communicator->name, sizeof place->name - 1);

    STORE(place->incarnation, 0);
    __atomic_thread_fence(__ATOMIC_RELEASE);
    STORE(place->id, communicator->id);
    STORE(place->rank, communicator->rank);
    STORE(place->nranks, communicator->nranks);
    STORE(place->nnodes, communicator->nnodes);
    STORE(place->kernel_untrusted, 0);
    STORE(place->init_ticks, clock_ticks());
    STORE(place->destroy_ticks, 0);
    memset(place->name, 0, sizeof place->name);
    if (length > 0)
        memcpy(place->name, communicator->name, length);
    __atomic_store_n(&place->incarnation, incarnation, __ATOMIC_RELEASE);
}

/* The largest communicator leads the governor; of equals the one with the lowest id, so that all ranks agree. */
static void consider_lead(uint32_t comm)
{
    const uint32_t lead = LOAD(session.lead);
    const struct wire_comm *new_one = &session.comms[comm];
    const struct wire_comm *old_one = &session.comms[lead % WIRE_COMMS];
    const uint32_t more = LOAD(new_one->nranks), less = LOAD(old_one->nranks);

    if (lead == WIRE_NO_COMM || LOAD(old_one->destroy_ticks) != 0 || more > less
        || (more == less && LOAD(new_one->id) < LOAD(old_one->id)))
        STORE(session.lead, comm);
}

/* Called with the session's lock held. */
void *comm_open(const struct communicator *communicator)
{
    const uint32_t place = find_place();
    struct wire_comm *comm = &session.comms[place % WIRE_COMMS];

    if (place == WIRE_NO_COMM) {
        ADD(session.status->refused_comms, 1);
        return (void *)(session.tag | UINT64_C(0xFFFF));
    }
    if (LOAD(session.rows_used) > CROWDED_ROWS)
        clear_rows(WIRE_NO_COMM);
    fill(comm, communicator);
    consider_lead(place);
    return (void *)(session.tag | (comm->incarnation & 0xFFFFFF) << 16 | (place + 1));
}

uint32_t comm_of(const void *context)
{
    const uint64_t number = (uint64_t)(uintptr_t)context;
    const uint32_t place = (uint32_t)(number & 0xFFFF) - 1;

    if (!handle_is_ours(number) || place >= WIRE_COMMS)
        return WIRE_NO_COMM;
    return (LOAD(session.comms[place].incarnation) ^ number >> 16) & 0xFFFFFF ? WIRE_NO_COMM : place;
}

void comm_close(void *context)
{
    const uint32_t comm = comm_of(context);

    if (comm != WIRE_NO_COMM && LOAD(session.comms[comm].destroy_ticks) == 0)
        STORE(session.comms[comm].destroy_ticks, clock_ticks());
}

void comm_learn(uint32_t comm, uint64_t id, uint32_t rank)
{
    if (comm == WIRE_NO_COMM || id == 0 || LOAD(session.comms[comm].id) == id)
        return;
    STORE(session.comms[comm].id, id);
    STORE(session.comms[comm].rank, rank);
}
