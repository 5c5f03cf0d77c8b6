/* Transfers (NCCL's proxy operations) and channels of kernels: in a slot while they run, reported when they close. */
#include "plugin.h"

enum { TRIES = 8 };

static bool is_open(const struct wire_transfer *transfer)
{
    return LOAD(transfer->handle) != 0 && LOAD(transfer->last_ticks) == 0;
}

/* The slot that this thread gave up last is still in its cache. */
static struct wire_transfer *take_warm(struct producer *producer, uint64_t *before)
{
    struct wire_transfer *slot = producer->warm;

    if (slot == NULL || is_open(slot))
        return NULL;
    producer->warm = NULL;
    return slot_take(producer, &slot->handle, true, before) ? slot : NULL;
}

/* The next slot whose transfer is over, or one that is still open when there is none near; NULL when others were
 * faster. */
static struct wire_transfer *take_next(struct producer *producer, uint64_t *before)
{
    for (int i = 0; i < TRIES; i++) {
        const uint64_t number =
            producer->number == 0 ? ADD(producer->next_transfer, 1) : producer->next_transfer++;
        struct wire_transfer *slot = &producer->transfers[number % WIRE_RING_TRANSFERS];
        const bool open = is_open(slot);
        const uint64_t operation = LOAD(slot->operation);

        if ((open && i < TRIES - 1) || !slot_take(producer, &slot->handle, number >= WIRE_RING_TRANSFERS, before))
            continue;
        if (open) {
            ADD(session.status->overwritten, 1);
            operation_part_is_lost(operation);
        }
        return slot;
    }
    ADD(session.status->overwritten, 1);
    return NULL;
}

static struct wire_transfer *claim(struct producer *producer, uint64_t kind, uint64_t *handle)
{
    uint64_t before = 0;
    struct wire_transfer *slot = take_warm(producer, &before);

    if (slot == NULL)
        slot = take_next(producer, &before);
    if (slot != NULL)
        *handle = handle_of(kind, handle_generation(before) + 1, (uint64_t)(slot - session.transfers));
    return slot;
}

static void give_up(struct producer *producer, struct wire_transfer *slot, uint64_t now)
{
    STORE(slot->last_ticks, now);
    if (slot >= producer->transfers && slot < producer->transfers + WIRE_RING_TRANSFERS && producer->number != 0)
        producer->warm = slot;
}

static void fill(struct wire_transfer *slot, const struct proxy_operation *proxy, uint64_t now)
{
    STORE(slot->operation, proxy->parent);
    STORE(slot->wait, wire_since(now));
    STORE(slot->bytes, 0);
    STORE(slot->first_ticks, now);
    STORE(slot->last_ticks, 0);
    STORE(slot->pid, proxy->pid);
    STORE(slot->peer, proxy->peer);
    STORE(slot->comm, (uint16_t)proxy->comm);
    STORE(slot->channel, proxy->channel);
    STORE(slot->flags, (uint8_t)(proxy->send ? WIRE_FLAG_SEND : 0));
    STORE(slot->steps, proxy->steps);
    STORE(slot->done_steps, 0);
    STORE(slot->head_step, 0);
    for (int i = 0; i < 4; i++)
        STORE(slot->wait_ticks[i], 0);
    STORE(slot->charged_ticks, now);
}

/* Only where steps will come: most of a slot stays untouched otherwise. */
static void expect_steps(struct wire_transfer *slot)
{
    for (int i = 0; i < WIRE_STEPS_AHEAD; i++)
        STORE(slot->ahead[i].state, 0);
}

uint64_t transfer_begin(struct producer *producer, uint64_t now, const struct proxy_operation *proxy)
{
    struct wire_operation *operation = operation_of(proxy->parent);
    struct proxy_operation known = *proxy;
    struct wire_transfer *slot;
    uint64_t handle;

    slot = claim(producer, WIRE_HANDLE_TRANSFER, &handle);
    if (slot == NULL)
        return 0;
    if (operation != NULL) {
        operation_part_begins(operation, now);
        known.pid = 0;
        known.comm = LOAD(operation->comm);
    } else if (proxy->parent != 0 && !handle_is_ours(proxy->parent)) {
        ADD(session.status->foreign, 1);
    } else {
        known.pid = 0;
    }
    fill(slot, &known, now);
    if (handle_is_sampled(proxy->parent) && LOAD(session.level) >= WIRE_STEPS) {
        handle |= UINT64_C(1) << WIRE_SAMPLED_SHIFT;
        expect_steps(slot);
    }
    __atomic_store_n(&slot->handle, handle, __ATOMIC_RELEASE);
    return handle;
}

static struct wire_transfer *slot_of(uint64_t handle)
{
    struct wire_transfer *slot;

    if (!handle_is_ours(handle) || handle_slot(handle) >= session.rings * WIRE_RING_TRANSFERS)
        return NULL;
    slot = &session.transfers[handle_slot(handle)];
    return handle_same_place(LOAD(slot->handle), handle) && is_open(slot) ? slot : NULL;
}

/* The open transfer that a transfer's or a step's handle names; a step's handle has the same place in it. */
struct wire_transfer *transfer_of(uint64_t handle)
{
    struct wire_transfer *slot = slot_of(handle);

    if (slot == NULL || (LOAD(slot->flags) & WIRE_FLAG_KERNEL)) {
        ADD(session.status->stale, 1);
        return NULL;
    }
    return slot;
}

static void report(struct producer *producer, const struct wire_transfer *transfer, uint64_t now)
{
    uint32_t stamp;
    struct wire_record *record = record_begin(producer, &stamp);

    if (record == NULL)
        return;
    record->kind = WIRE_TRANSFER_CLOSED;
    record->flags = LOAD(transfer->flags);
    record->comm = LOAD(transfer->comm);
    record->transfer.operation = LOAD(transfer->operation);
    record->transfer.first_ticks = LOAD(transfer->first_ticks);
    record->transfer.bytes = LOAD(transfer->bytes);
    record->transfer.peer = LOAD(transfer->peer);
    record->transfer.pid = LOAD(transfer->pid);
    record->transfer.duration = duration_pack(now - LOAD(transfer->first_ticks));
    record->transfer.channel_steps = (uint32_t)LOAD(transfer->channel) << 24 | (LOAD(transfer->steps) & 0xFFFFFF);
    for (int i = 0; i < 4; i++)
        record->transfer.waits[i] = duration_pack(LOAD(transfer->wait_ticks[i]));
    record_end(producer, record, stamp);
}

void transfer_end(struct producer *producer, uint64_t now, uint64_t handle)
{
    struct wire_transfer *transfer = transfer_of(handle);

    if (transfer == NULL)
        return;
    if (LOAD(transfer->flags) & WIRE_FLAG_STEPS)
        steps_settle(transfer, now);
    report(producer, transfer, now);
    give_up(producer, transfer, now);
    operation_part_ends(LOAD(transfer->operation), now);
}

uint64_t kernel_begin(struct producer *producer, uint64_t now, const struct kernel_channel *kernel)
{
    struct wire_operation *operation = operation_of(kernel->parent);
    const struct proxy_operation as_transfer = {
        .parent = kernel->parent, .comm = kernel->comm, .peer = -1, .channel = kernel->channel};
    struct wire_transfer *slot;
    uint64_t handle;

    if (operation == NULL)
        return 0;
    operation_kernel_begins(operation);
    slot = claim(producer, WIRE_HANDLE_KERNEL, &handle);
    if (slot == NULL)
        return 0;
    operation_part_begins(operation, now);
    fill(slot, &as_transfer, now);
    STORE(slot->flags, (uint8_t)WIRE_FLAG_KERNEL);
    STORE(slot->bytes, kernel->gpu_ns);
    STORE(slot->charged_ticks, 0);
    __atomic_store_n(&slot->handle, handle, __ATOMIC_RELEASE);
    return handle;
}

static struct wire_transfer *kernel_of(uint64_t handle)
{
    struct wire_transfer *slot = slot_of(handle);

    if (slot == NULL || !(LOAD(slot->flags) & WIRE_FLAG_KERNEL)) {
        ADD(session.status->stale, 1);
        return NULL;
    }
    return slot;
}

void kernel_stops(uint64_t handle, uint64_t gpu_ns)
{
    struct wire_transfer *kernel = kernel_of(handle);

    if (kernel != NULL)
        STORE(kernel->charged_ticks, gpu_ns);
}

void kernel_end(struct producer *producer, uint64_t now, uint64_t handle)
{
    struct wire_transfer *kernel = kernel_of(handle);
    struct wire_record *record;
    uint32_t stamp;

    if (kernel == NULL)
        return;
    record = record_begin(producer, &stamp);
    if (record != NULL) {
        record->kind = WIRE_KERNEL_CLOSED;
        record->flags = WIRE_FLAG_KERNEL;
        record->comm = LOAD(kernel->comm);
        record->kernel = (struct wire_kernel_closed){
            .operation = LOAD(kernel->operation),
            .gpu_start_ns = LOAD(kernel->bytes),
            .gpu_stop_ns = LOAD(kernel->charged_ticks),
            .start_ticks = LOAD(kernel->first_ticks),
            .stop_ticks = now,
            .channel = LOAD(kernel->channel),
        };
        record_end(producer, record, stamp);
    }
    give_up(producer, kernel, now);
    operation_part_ends(LOAD(kernel->operation), now);
}
