/* Handles that are used wrongly: invented, mistaken, stopped twice or never, used after their place was given away. */
#define _POSIX_C_SOURCE 200809L

#include "harness.h"
#include "scenarios.h"

#include <stdlib.h>

static void touch(const struct comm *comm, void *handle)
{
    for (int state = -2; state < 40; state++) {
        EQUAL(comm->nccl->table->record(handle, state, NULL), LOCKSTEP_SUCCESS);
        record(comm, handle, state, UINT64_MAX);
    }
    EQUAL(comm->nccl->table->record(handle, 1 << 30, NULL), LOCKSTEP_SUCCESS);
    stop(comm, handle);
    stop(comm, handle);
}

static uint64_t next_random(uint64_t *state)
{
    *state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return *state >> 1 ^ *state << 33;
}

/* Numbers that we never gave out: anything, and anything under our own tag. */
static void play_invented_handles(int version)
{
    const struct nccl nccl = load_plugin(version);
    const struct comm comm = open_comm(&nccl, COMM_ID, 0, 2);
    const uint64_t tag = (uintptr_t)enqueue_all_reduce(&comm, 0) >> WIRE_TAG_SHIFT << WIRE_TAG_SHIFT;
    uint64_t random = 1;

    for (int i = 0; i < 2000; i++) {
        const uint64_t number = next_random(&random);

        touch(&comm, (void *)number);
        touch(&comm, (void *)(tag | number >> 16));
        stop(&comm, start(&comm, &(struct event){.type = ABI_PROXY_OP, .parent = (void *)number, .steps = 1}));
        stop(&comm, start(&comm, &(struct event){.type = ABI_PROXY_STEP, .parent = (void *)(tag | number >> 16)}));
        stop(&comm, start(&comm, &(struct event){.type = ABI_KERNEL_CHANNEL, .parent = (void *)(tag | number >> 16)}));
    }
    run_all_reduce(&comm, 1);
    struct ringfile file = read_own_file();
    check_file(&file);
    EQUAL(count_open_transfers(&file), 0);
    EQUAL(find_row(&file, COMM_ID, WIRE_ALL_REDUCE, -1)->done, 2);
    CHECK(status_of(&file)->stale > 0);
    close_file(&file);
}

/* Anything, and our own with one bit changed, in its place, its incarnation or its tag. */
static uint64_t invent_context(uint64_t real, int number, uint64_t *random)
{
    const int bit = number / 2 % 56;

    return number % 2 ? next_random(random) : real ^ UINT64_C(1) << (bit < 40 ? bit : bit + 8);
}

static void play_invented_contexts(int version)
{
    const struct nccl nccl = load_plugin(version);
    const struct comm comm = open_comm(&nccl, COMM_ID, 0, 2);
    struct comm invented = comm;
    uint64_t random = 2;

    for (int i = 0; i < 2000; i++) {
        invented.context = (void *)invent_context((uintptr_t)comm.context, i, &random);
        run_all_reduce(&invented, (uint64_t)i);
        close_comm(&invented);
    }
    run_all_reduce(&comm, 5000);
    struct ringfile file = read_own_file();
    check_file(&file);
    EQUAL(comm_at(&file, place_of_comm(&file, COMM_ID))->destroy_ticks, 0);
    EQUAL(find_row(&file, COMM_ID, WIRE_ALL_REDUCE, -1)->done, 5001);
    close_file(&file);
}

/* Every handle is stopped again and used after its stop, as NCCL does with those of API calls. */
static void play_double_stops(int version)
{
    const struct nccl nccl = load_plugin(version);
    const struct comm comm = open_comm(&nccl, COMM_ID, 0, 2);
    void *operation = enqueue_all_reduce(&comm, 0);
    void *transfer = begin_transfer(&comm, operation, 1, 0, 1, true);
    void *step = begin_step(&comm, transfer, 0);

    stop(&comm, step);
    touch(&comm, step);
    stop(&comm, transfer);
    touch(&comm, transfer);
    touch(&comm, step);
    touch(&comm, operation);
    struct ringfile file = read_own_file();
    check_file(&file);
    EQUAL(operation_of(&file, operation)->open, 0);
    EQUAL(operation_of(&file, operation)->began, 1);
    EQUAL(count_records(&file, WIRE_TRANSFER_CLOSED), 1);
    EQUAL(count_records(&file, WIRE_STEP_CLOSED), 1);
    EQUAL(find_row(&file, COMM_ID, WIRE_ALL_REDUCE, -1)->done, 1);
    close_file(&file);
}

/* A handle that says it is of another kind than what stands in its place. */
static void play_mistaken_kinds(int version)
{
    const uint64_t kinds = UINT64_C(7) << WIRE_KIND_SHIFT;

    setenv("LOCKSTEP_KERNEL", "on", 1);
    const struct nccl nccl = load_plugin(version);
    const struct comm comm = open_comm(&nccl, COMM_ID, 0, 2);
    void *operation = enqueue_all_reduce(&comm, 0);
    void *transfer = begin_transfer(&comm, operation, 1, 0, 1, true);
    void *kernel = start(&comm, &(struct event){.type = ABI_KERNEL_CHANNEL, .parent = operation, .gpu_ns = 1});
    const uint64_t as_kernel = ((uintptr_t)transfer & ~kinds) | ((uintptr_t)kernel & kinds);
    const uint64_t as_transfer = ((uintptr_t)kernel & ~kinds) | ((uintptr_t)transfer & kinds);

    CHECK(transfer != NULL && kernel != NULL);
    touch(&comm, (void *)as_kernel);
    touch(&comm, (void *)as_transfer);
    struct ringfile file = read_own_file();
    EQUAL(count_records(&file, WIRE_TRANSFER_CLOSED) + count_records(&file, WIRE_KERNEL_CLOSED), 0);
    EQUAL(operation_of(&file, operation)->open, 2);
    stop(&comm, transfer);
    stop(&comm, kernel);
    EQUAL(operation_of(&file, operation)->open, 0);
    check_file(&file);
    close_file(&file);
}

/* A step ends after its transfer, and a transfer begins after its communicator is gone. */
static void play_late_calls(int version)
{
    const struct nccl nccl = load_plugin(version);
    const struct comm comm = open_comm(&nccl, COMM_ID, 0, 2);
    void *operation = enqueue_all_reduce(&comm, 0);
    void *transfer = begin_transfer(&comm, operation, 1, 0, 1, true);
    void *step = begin_step(&comm, transfer, 0);

    stop(&comm, transfer);
    record(&comm, step, ABI_SEND_WAIT, 100);
    stop(&comm, step);
    void *open_transfer = begin_transfer(&comm, operation, 1, 0, 1, false);
    close_comm(&comm);
    stop(&comm, open_transfer);
    run_all_reduce(&comm, 1);
    close_comm(&comm);
    struct ringfile file = read_own_file();
    check_file(&file);
    EQUAL(count_records(&file, WIRE_STEP_CLOSED) < 3, true);
    EQUAL(count_open_transfers(&file), 0);
    CHECK(comm_at(&file, place_of_comm(&file, COMM_ID))->destroy_ticks != 0);
    close_file(&file);
}

/* --- stops that never come --- */

/* More than every table holds: the oldest are given up and counted, and what comes next is still right. */
static void play_missing_stops(int version)
{
    enum { LOST = 5000 };
    const struct nccl nccl = load_plugin(version);
    const struct comm comm = open_comm(&nccl, COMM_ID, 0, 2);

    for (uint64_t seq = 0; seq < LOST; seq++) {
        void *operation = enqueue_all_reduce(&comm, seq);
        void *transfer = begin_transfer(&comm, operation, 1, 0, 1000, true);

        for (int step = 0; step < 20; step++)
            begin_step(&comm, transfer, step);
    }
    run_all_reduce(&comm, LOST);
    struct ringfile file = read_own_file();
    check_file(&file);
    CHECK(status_of(&file)->overwritten > 0);
    CHECK(count_open_transfers(&file) > 0 && count_open_transfers(&file) < WIRE_RING_TRANSFERS + 1);
    EQUAL(find_row(&file, COMM_ID, WIRE_ALL_REDUCE, -1)->enqueued, LOST + 1);
    EQUAL(find_row(&file, COMM_ID, WIRE_ALL_REDUCE, -1)->done, LOST + 1);
    close_file(&file);
}

/* A handle whose place serves another operation by now is dead: it changes nothing there. */
static void play_stale_handles(int version)
{
    const struct nccl nccl = load_plugin(version);
    const struct comm comm = open_comm(&nccl, COMM_ID, 0, 2);
    void *old_operation = enqueue_all_reduce(&comm, 0);
    void *old_transfer = begin_transfer(&comm, old_operation, 1, 0, 1, true);
    void *old_step = begin_step(&comm, old_transfer, 0);

    stop(&comm, old_transfer);
    for (uint64_t seq = 1; seq < 2 * WIRE_RING_OPERATIONS; seq++)
        run_all_reduce(&comm, seq);
    void *open[WIRE_RING_TRANSFERS];
    for (int i = 0; i < WIRE_RING_TRANSFERS / 2; i++)
        open[i] = begin_transfer(&comm, enqueue_all_reduce(&comm, 10000 + (uint64_t)i), 1, 0, 1, true);
    struct ringfile file = read_own_file();
    const uint64_t stale_before = status_of(&file)->stale, records_before = sum_of_heads(&file);
    stop(&comm, old_transfer);
    record(&comm, old_step, ABI_SEND_WAIT, 100);
    stop(&comm, old_step);
    begin_step(&comm, old_transfer, 1);
    CHECK(status_of(&file)->stale > stale_before);
    EQUAL(sum_of_heads(&file), records_before);
    EQUAL(count_open_transfers(&file), WIRE_RING_TRANSFERS / 2);
    void *orphan = begin_transfer(&comm, old_operation, 1, 0, 1, true); /* what it belonged to is forgotten, it is not */
    CHECK(orphan != NULL);
    stop(&comm, orphan);
    for (int i = 0; i < WIRE_RING_TRANSFERS / 2; i++)
        stop(&comm, open[i]);
    EQUAL(count_open_transfers(&file), 0);
    check_file(&file);
    close_file(&file);
}

const struct scenario handle_scenarios[] = {
    {"invented handles", play_invented_handles, NEWEST_VERSION, OLDEST_VERSION},
    {"invented contexts", play_invented_contexts, NEWEST_VERSION, 4},
    {"double stops", play_double_stops, NEWEST_VERSION, OLDEST_VERSION},
    {"mistaken kinds", play_mistaken_kinds, NEWEST_VERSION, 4},
    {"late calls", play_late_calls, NEWEST_VERSION, OLDEST_VERSION},
    {"missing stops", play_missing_stops, NEWEST_VERSION, NEWEST_VERSION},
    {"stale handles", play_stale_handles, NEWEST_VERSION, NEWEST_VERSION},
    {NULL, NULL, 0, 0},
};
