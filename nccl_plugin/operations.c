/* Operations: numbered as all ranks number them, kept in a slot while their parts run, reported when enqueued. */
#include "plugin.h"

enum { TRIES = 8 };

struct number {
    uint64_t seq;
    uint32_t replay;
    bool valid; /* other ranks count the same */
};

/* NCCL counts collectives itself, but inside CUDA graphs its number may stand still: then we count the replays. */
static struct number number_collective(struct wire_row *row, const struct operation *operation, uint64_t now)
{
    struct number number = {.seq = operation->seq, .valid = !operation->captured};
    bool again;

    if (row == NULL)
        return number;
    again = operation->seq < LOAD(row->enqueued) && LOAD(row->epoch) == LOAD(session.epoch);
    if (again || (operation->captured && !session.kernel_channels)) {
        number.replay = ADD(row->replay, 1) + 1;
        number.valid = false;
        return number;
    }
    number.valid = true;
    STORE(row->epoch, LOAD(session.epoch));
    STORE(row->enqueued_ticks, now);
    STORE(row->enqueued, operation->seq + 1);
    return number;
}

/* NCCL does not count these: the k-th send to a peer is the k-th receive there, from the beginning of an epoch on. */
static struct number number_send_or_recv(struct wire_row *row, uint64_t now)
{
    struct number number = {.valid = row != NULL};

    if (row == NULL)
        return number;
    if (LOAD(row->epoch) != LOAD(session.epoch)) {
        STORE(row->epoch, LOAD(session.epoch));
        STORE(row->enqueued, 0);
        STORE(row->started, 0);
        STORE(row->done, 0);
    }
    STORE(row->enqueued_ticks, now);
    number.seq = ADD(row->enqueued, 1);
    return number;
}

/* Who takes part, as all of them know it: a function, or the two ends of a send. */
static uint64_t parties_of(const struct operation *operation, uint32_t rank)
{
    const uint64_t peer = (uint32_t)operation->peer;

    if (operation->func == WIRE_SEND)
        return (uint64_t)rank << 32 | peer;
    return operation->func == WIRE_RECV ? peer << 32 | rank : operation->func;
}

static uint64_t scatter(uint64_t number)
{
    number = (number ^ number >> 32) * UINT64_C(0xBF58476D1CE4E5B9);
    number = (number ^ number >> 29) * UINT64_C(0x94D049BB133111EB);
    return number ^ number >> 32;
}

/* A pure function of what all ranks of an operation know, so that all keep the same ones. */
static bool is_sampled(const struct operation *operation, uint64_t seq)
{
    const struct wire_comm *comm = &session.comms[operation->comm % WIRE_COMMS];
    const uint32_t level = LOAD(session.level), share = LOAD(session.share);
    uint64_t number;

    if (operation->comm == WIRE_NO_COMM || level < WIRE_STEPS || (share == 0 && level == WIRE_STEPS))
        return false;
    if (level == WIRE_TRACE)
        return true;
    number = LOAD(comm->id) + parties_of(operation, LOAD(comm->rank)) * UINT64_C(0x9E3779B97F4A7C15);
    return scatter(number + seq * UINT64_C(0xD6E8FEB86659FD93)) >> 48 < share;
}

/* The next slot whose operation is over; when there is none near, one that still runs; NULL when others were faster. */
static struct wire_operation *claim(struct producer *producer, uint64_t *handle)
{
    struct wire_operation *slot = NULL;
    uint64_t number = 0, before = 0;
    bool taken = false;

    for (int i = 0; i < TRIES && !taken; i++) {
        number = producer->number == 0 ? ADD(producer->next_operation, 1) : producer->next_operation++;
        slot = &producer->operations[number % WIRE_RING_OPERATIONS];
        taken = (LOAD(slot->open) == 0 || i == TRIES - 1)
                && slot_take(producer, &slot->handle, number >= WIRE_RING_OPERATIONS, &before);
    }
    if (!taken || LOAD(slot->open) != 0)
        ADD(session.status->overwritten, 1);
    *handle = handle_of(WIRE_HANDLE_OPERATION, handle_generation(before) + 1, (uint64_t)(slot - session.operations));
    return taken ? slot : NULL;
}

/* An operation with all that we make of it. Slot and record are filled field by field from here: copying a structure
 * that was just written in small pieces would stall the processor for longer than all the rest takes. */
struct known {
    const struct operation *operation;
    uint64_t handle;
    uint64_t bytes;
    uint64_t now;
    struct number number;
    uint32_t flags;
    uint32_t epoch;
};

/* Whether NCCL tells, of an operation that is enqueued now, when the GPU begins it. */
static bool awaits_kernel(uint32_t comm)
{
    return session.kernel_channels && comm != WIRE_NO_COMM && !LOAD(session.comms[comm].kernel_untrusted);
}

static void fill(struct wire_operation *slot, const struct known *known, const struct wire_row *row)
{
    const struct operation *operation = known->operation;

    STORE(slot->seq, known->number.seq);
    STORE(slot->bytes, known->bytes);
    STORE(slot->enqueue_ticks, known->now);
    STORE(slot->comm, (uint16_t)operation->comm);
    STORE(slot->func, operation->func);
    STORE(slot->dtype, operation->dtype);
    STORE(slot->algo, operation->algo);
    STORE(slot->proto, operation->proto);
    STORE(slot->channels, operation->channels);
    STORE(slot->flags, (uint8_t)(known->flags | (awaits_kernel(operation->comm) ? WIRE_FLAG_AWAITS_KERNEL : 0)));
    STORE(slot->peer, operation->peer);
    STORE(slot->replay, known->number.replay);
    STORE(slot->row, row == NULL ? WIRE_BUSY : (uint32_t)(row - session.rows));
    STORE(slot->epoch, known->epoch);
    STORE(slot->began, 0);
    STORE(slot->open, 0);
    __atomic_store_n(&slot->handle, known->handle, __ATOMIC_RELEASE);
}

static void report(struct producer *producer, const struct known *known)
{
    const struct operation *operation = known->operation;
    uint32_t stamp;
    struct wire_record *record = record_begin(producer, &stamp);

    if (record == NULL)
        return;
    record->kind = WIRE_ENQUEUED;
    record->flags = (uint8_t)known->flags;
    record->comm = (uint16_t)operation->comm;
    record->enqueued.operation = known->handle;
    record->enqueued.seq = known->number.seq;
    record->enqueued.bytes = known->bytes;
    record->enqueued.ticks = known->now;
    record->enqueued.peer = operation->peer;
    record->enqueued.replay = known->number.replay;
    record->enqueued.func = operation->func;
    record->enqueued.dtype = operation->dtype;
    record->enqueued.algo = operation->algo;
    record->enqueued.proto = operation->proto;
    record->enqueued.channels = operation->channels;
    record->enqueued.unused = 0;
    record->enqueued.epoch = (uint16_t)known->epoch;
    record->enqueued.root = operation->root;
    record->enqueued.padding = 0;
    record_end(producer, record, stamp);
}

static uint32_t flags_of(bool sampled, bool captured, bool valid)
{
    const bool timed = LOAD(session.status->mask) & (ABI_PROXY_OP | ABI_KERNEL_CHANNEL);

    return (sampled ? WIRE_FLAG_SAMPLED : 0) | (captured ? WIRE_FLAG_CAPTURED : 0) | (valid ? WIRE_FLAG_SEQ_VALID : 0)
           | (timed ? 0 : WIRE_FLAG_UNTIMED);
}

uint64_t operation_begin(struct producer *producer, uint64_t now, const struct operation *operation)
{
    const bool collective = operation->func != WIRE_SEND && operation->func != WIRE_RECV;
    struct wire_row *row = row_find(operation->comm, operation->func, operation->peer);
    struct known known = {
        .operation = operation,
        .bytes = operation->count * dtype_bytes(operation->dtype),
        .now = now,
        .number = collective ? number_collective(row, operation, now) : number_send_or_recv(row, now),
        .epoch = LOAD(session.epoch),
    };
    const bool sampled = is_sampled(operation, known.number.seq);
    struct wire_operation *slot = claim(producer, &known.handle);

    if (slot == NULL)
        return 0;
    known.handle |= (uint64_t)sampled << WIRE_SAMPLED_SHIFT;
    known.flags = flags_of(sampled, operation->captured, known.number.valid);
    fill(slot, &known, row);
    report(producer, &known);
    if (collective && known.number.valid)
        governor_operation(operation->comm, operation->func, known.number.seq, now);
    return known.handle;
}

struct wire_operation *operation_of(uint64_t handle)
{
    struct wire_operation *slot;

    if (!handle_is_ours(handle) || handle_kind(handle) != WIRE_HANDLE_OPERATION
        || handle_slot(handle) >= session.rings * WIRE_RING_OPERATIONS)
        return NULL;
    slot = &session.operations[handle_slot(handle)];
    return handle_same_place(__atomic_load_n(&slot->handle, __ATOMIC_ACQUIRE), handle) ? slot : NULL;
}

static struct wire_row *row_of(const struct wire_operation *operation)
{
    const uint32_t row = LOAD(operation->row);

    return row < WIRE_ROWS && (LOAD(operation->flags) & WIRE_FLAG_SEQ_VALID) ? &session.rows[row] : NULL;
}

static void raise_to(uint64_t *count, uint64_t value)
{
    if (LOAD(*count) < value)
        STORE(*count, value);
}

void operation_part_begins(struct wire_operation *operation, uint64_t now)
{
    struct wire_row *row;

    ADD(operation->open, 1);
    if (ADD(operation->began, 1) != 0 || (row = row_of(operation)) == NULL)
        return;
    STORE(row->started_ticks, now);
    raise_to(&row->started, LOAD(operation->seq) + 1);
}

/* Said of every operation, sampled or not: where one hangs, it tells the GPU that never came to it. */
void operation_kernel_begins(struct wire_operation *operation)
{
    if (LOAD(operation->flags) & WIRE_FLAG_AWAITS_KERNEL)
        __atomic_fetch_xor(&operation->flags, (uint8_t)(WIRE_FLAG_AWAITS_KERNEL | WIRE_FLAG_KERNEL), __ATOMIC_RELAXED);
}

/* Count down and say whether this was the last one. Never below 0: in the shared set a slot may change hands here. */
static bool was_last_part(struct wire_operation *operation)
{
    uint32_t open = LOAD(operation->open);

    while (open != 0)
        if (__atomic_compare_exchange_n(&operation->open, &open, open - 1, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
            return open == 1;
    return false;
}

void operation_part_is_lost(uint64_t handle)
{
    struct wire_operation *operation = operation_of(handle);

    if (operation != NULL)
        was_last_part(operation);
}

void operation_part_ends(uint64_t handle, uint64_t now)
{
    struct wire_operation *operation = operation_of(handle);
    struct wire_row *row;

    if (operation == NULL || !was_last_part(operation) || (row = row_of(operation)) == NULL)
        return;
    STORE(row->done_ticks, now);
    raise_to(&row->done, LOAD(operation->seq) + 1);
}
