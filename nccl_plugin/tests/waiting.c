/* Where the time of a transfer goes: only the oldest unfinished step is charged, and a hang shows what it waits for. */
#define _POSIX_C_SOURCE 200809L

#include "harness.h"
#include "scenarios.h"

#include <stdlib.h>
#include <string.h>

struct transfer {
    struct nccl nccl;
    struct comm comm;
    void *operation, *handle;
    bool send;
};

/* An operation enqueued at 500 and a transfer of it begun at 1000, on the replayed clock. */
static void begin(struct transfer *ours, int version, int steps, bool send)
{
    ours->nccl = load_plugin(version);
    ours->send = send;
    use_replay_clock(&ours->nccl);
    now_ns = 100;
    ours->comm = open_comm(&ours->nccl, COMM_ID, 0, 2);
    now_ns = 500;
    ours->operation = enqueue_all_reduce(&ours->comm, 0);
    now_ns = 1000;
    ours->handle = begin_transfer(&ours->comm, ours->operation, 1, 0, steps, send);
    CHECK(ours->handle != NULL);
}

static void *post(struct transfer *ours, uint64_t at_ns, int step)
{
    now_ns = at_ns;
    void *handle = begin_step(&ours->comm, ours->handle, step);
    pass_state(&ours->comm, ours->handle, handle, ours->send ? ABI_SEND_GPU_WAIT : ABI_RECV_WAIT, 0);
    return handle;
}

static void enter(struct transfer *ours, uint64_t at_ns, void *step, int state)
{
    now_ns = at_ns;
    pass_state(&ours->comm, ours->handle, step, state, 100);
}

static void finish(struct transfer *ours, uint64_t at_ns, void *handle)
{
    now_ns = at_ns;
    stop(&ours->comm, handle);
}

static void check_waits(uint64_t gpu, uint64_t peer, uint64_t wire, uint64_t flush)
{
    struct ringfile file = read_own_file();
    const struct wire_record *record = find_record(&file, WIRE_TRANSFER_CLOSED, 0);

    check_file(&file);
    EQUAL(count_records(&file, WIRE_TRANSFER_CLOSED), 1);
    EQUAL(duration_of(record->transfer.waits[0]), gpu);
    EQUAL(duration_of(record->transfer.waits[1]), peer);
    EQUAL(duration_of(record->transfer.waits[2]), wire);
    EQUAL(duration_of(record->transfer.waits[3]), flush);
    EQUAL(count_open_transfers(&file), 0);
    close_file(&file);
}

/* Step 1 overtakes step 0: nobody is charged for what it waited for, since step 0 was in front all the time. */
static void play_overtaken(int version)
{
    struct transfer ours;

    begin(&ours, version, 2, true);
    void *first = post(&ours, 1000, 0), *second = post(&ours, 1000, 1);
    enter(&ours, 1050, second, ABI_SEND_PEER_WAIT);
    enter(&ours, 1100, second, ABI_SEND_WAIT);
    finish(&ours, 1200, second);
    enter(&ours, 1300, first, ABI_SEND_PEER_WAIT);
    enter(&ours, 1410, first, ABI_SEND_WAIT);
    finish(&ours, 1520, first);
    finish(&ours, 1600, ours.handle);
    check_waits(300, 110, 110, 0);
    struct ringfile file = read_own_file();
    EQUAL(transfer_of(&file, ours.handle)->done_steps, 2);
    close_file(&file);
}

/* NCCL posts a receive again when the network had no request for it. */
static void play_posted_again(int version)
{
    struct transfer ours;

    begin(&ours, version, 1, false);
    post(&ours, 1000, 0);
    void *step = post(&ours, 1100, 0);
    enter(&ours, 1300, step, ABI_RECV_FLUSH_WAIT);
    enter(&ours, 1310, step, ABI_RECV_GPU_WAIT);
    finish(&ours, 1400, step);
    finish(&ours, 1400, ours.handle);
    check_waits(90, 300, 0, 10);
}

/* One step after the other, as many as a large message has: every nanosecond is charged, none twice. */
static void play_long(int version)
{
    enum { STEPS = 1000 };
    struct transfer ours;

    begin(&ours, version, STEPS, true);
    for (int step = 0; step < STEPS; step++) {
        const uint64_t begun = 1000 + 100 * (uint64_t)step;
        void *handle = post(&ours, begun, step);

        enter(&ours, begun + 20, handle, ABI_SEND_PEER_WAIT);
        enter(&ours, begun + 50, handle, ABI_SEND_WAIT);
        finish(&ours, begun + 100, handle);
    }
    finish(&ours, 1000 + 100 * STEPS, ours.handle);
    check_waits(20 * STEPS, 30 * STEPS, 50 * STEPS, 0);
    struct ringfile file = read_own_file();
    EQUAL(count_records(&file, WIRE_STEP_CLOSED), STEPS);
    EQUAL(find_record(&file, WIRE_TRANSFER_CLOSED, 0)->transfer.bytes, 100 * STEPS);
    close_file(&file);
}

/* Eight steps ahead, kept full, as NCCL does: the sum of the waits is the time from first to last, not eight times it. */
static void play_pipelined(int version)
{
    enum { STEPS = 64 };
    struct transfer ours;
    void *steps[STEPS];

    begin(&ours, version, STEPS, false);
    for (int step = 0; step < WIRE_STEPS_AHEAD; step++)
        steps[step] = post(&ours, 1000, step);
    for (int step = 0; step < STEPS; step++) {
        const uint64_t done = 1100 + 100 * (uint64_t)step;

        enter(&ours, done - 10, steps[step], ABI_RECV_FLUSH_WAIT);
        enter(&ours, done - 4, steps[step], ABI_RECV_GPU_WAIT);
        finish(&ours, done, steps[step]);
        if (step + WIRE_STEPS_AHEAD < STEPS)
            steps[step + WIRE_STEPS_AHEAD] = post(&ours, done, step + WIRE_STEPS_AHEAD);
    }
    finish(&ours, 1000 + 100 * STEPS, ours.handle);
    check_waits(4 * STEPS, 90 * STEPS, 0, 6 * STEPS);
}

static void check_hang(const struct transfer *ours, enum wire_wait wait, uint64_t since, uint32_t head)
{
    struct ringfile file = read_own_file();
    const struct wire_transfer *transfer = transfer_of(&file, ours->handle);
    const struct wire_operation *operation = operation_of(&file, ours->operation);
    const struct wire_row *row = find_row(&file, COMM_ID, WIRE_ALL_REDUCE, -1);

    check_file(&file);
    EQUAL(transfer->wait >> 56, wait);
    EQUAL(transfer->wait & ((UINT64_C(1) << 56) - 1), since);
    EQUAL(transfer->head_step, head);
    EQUAL(transfer->done_steps, head);
    EQUAL(transfer->last_ticks, 0);
    EQUAL(transfer->peer, 1);
    EQUAL(transfer->operation, (uintptr_t)ours->operation);
    EQUAL(operation->open, 1);
    EQUAL(operation->bytes, 4096);
    EQUAL(operation->dtype, WIRE_FLOAT32);
    EQUAL(row->enqueued, 1);
    EQUAL(row->started, 1);
    EQUAL(row->done, 0);
    EQUAL(count_open_transfers(&file), 1);
    EQUAL(count_records(&file, WIRE_TRANSFER_CLOSED), 0);
    close_file(&file);
}

/* The picture of a hang is complete at every moment, without another callback. */
static void play_hang_of_sender(int version)
{
    struct transfer ours;

    begin(&ours, version, 4, true);
    void *first = post(&ours, 1000, 0);
    check_hang(&ours, WIRE_WAIT_GPU, 1000, 0);
    enter(&ours, 1100, first, ABI_SEND_PEER_WAIT);
    check_hang(&ours, version < 4 ? WIRE_WAIT_GPU : WIRE_WAIT_PEER, version < 4 ? 1000 : 1100, 0);
    enter(&ours, 1150, first, ABI_SEND_PEER_WAIT); /* NCCL says so on every try; it waits since the first */
    check_hang(&ours, version < 4 ? WIRE_WAIT_GPU : WIRE_WAIT_PEER, version < 4 ? 1000 : 1100, 0);
    enter(&ours, 1200, first, ABI_SEND_WAIT);
    check_hang(&ours, WIRE_WAIT_WIRE, 1200, 0);
    void *second = post(&ours, 1300, 1);
    check_hang(&ours, WIRE_WAIT_WIRE, 1200, 0);
    finish(&ours, 1400, first);
    check_hang(&ours, WIRE_WAIT_GPU, 1400, 1); /* what holds the transfer up, since it does */
    enter(&ours, 1500, second, ABI_SEND_WAIT);
    check_hang(&ours, WIRE_WAIT_WIRE, 1500, 1);
}

static void play_hang_of_receiver(int version)
{
    struct transfer ours;

    begin(&ours, version, 4, false);
    void *first = post(&ours, 1000, 0);
    check_hang(&ours, WIRE_WAIT_RECV, 1000, 0);
    enter(&ours, 1100, first, ABI_RECV_FLUSH_WAIT);
    check_hang(&ours, WIRE_WAIT_FLUSH, 1100, 0);
    enter(&ours, 1200, first, ABI_RECV_GPU_WAIT);
    check_hang(&ours, WIRE_WAIT_RECV_GPU, 1200, 0);
}

/* Without steps a transfer has a beginning and an end, and says that it has nothing more. */
static void play_unsampled(int version)
{
    struct transfer ours;

    setenv("LOCKSTEP_SAMPLE", "0", 1);
    begin(&ours, version, 2, true);
    CHECK(begin_step(&ours.comm, ours.handle, 0) == NULL); /* so NCCL reports no states of it */
    finish(&ours, 1700, ours.handle);
    check_waits(0, 0, 0, 0);
    struct ringfile file = read_own_file();
    const struct wire_record *record = find_record(&file, WIRE_TRANSFER_CLOSED, 0);
    EQUAL(record->flags & (WIRE_FLAG_SAMPLED | WIRE_FLAG_STEPS), 0);
    EQUAL(record->transfer.bytes, 0);
    EQUAL(record->transfer.first_ticks, 1000);
    EQUAL(duration_of(record->transfer.duration), 700);
    EQUAL(find_record(&file, WIRE_ENQUEUED, 0)->flags & WIRE_FLAG_SAMPLED, 0);
    EQUAL(count_records(&file, WIRE_STEP_CLOSED), 0);
    close_file(&file);
}

/* Hours fit into a record too, to one part in 2^26. */
static void play_hours(int version)
{
    const uint64_t waited = UINT64_C(36000) * 1000000000 + 12345;
    struct transfer ours;

    begin(&ours, version, 1, false);
    void *step = post(&ours, 1000, 0);
    enter(&ours, 1000 + waited, step, ABI_RECV_FLUSH_WAIT);
    finish(&ours, 1000 + waited, step);
    finish(&ours, 1000 + waited, ours.handle);
    struct ringfile file = read_own_file();
    const struct wire_record *record = find_record(&file, WIRE_TRANSFER_CLOSED, 0);
    const uint64_t told = duration_of(record->transfer.duration), peer = duration_of(record->transfer.waits[1]);
    CHECK(told <= waited && waited - told <= waited >> 26);
    CHECK(peer <= waited && waited - peer <= waited >> 26);
    close_file(&file);
}

/* Of an operation without steps, too, its slot tells whether the GPU has come to it; a send to oneself ends that. */
static void play_kernel_awaited(int version)
{
    setenv("LOCKSTEP_SAMPLE", "0", 1);
    setenv("LOCKSTEP_KERNEL", "on", 1);
    const struct nccl nccl = load_plugin(version);
    const struct comm comm = open_comm(&nccl, COMM_ID, 0, 2);
    void *begun = enqueue_all_reduce(&comm, 0), *awaited = enqueue_all_reduce(&comm, 1);
    begin_transfer(&comm, begun, 1, 0, 2, true);
    begin_transfer(&comm, awaited, 1, 0, 2, true);
    for (int channel = 0; channel < 2; channel++)
        CHECK(start(&comm, &(struct event){.type = ABI_KERNEL_CHANNEL, .parent = begun, .channel = channel}) != NULL);
    enqueue_p2p(&comm, true, 0, 64);
    void *untold = enqueue_all_reduce(&comm, 2);
    struct ringfile file = read_own_file();
    const bool has_lost_count = header_of(&file)->nccl_version < 23100;
    const unsigned either = WIRE_FLAG_AWAITS_KERNEL | WIRE_FLAG_KERNEL;
    check_file(&file);
    EQUAL(operation_of(&file, begun)->flags & either, WIRE_FLAG_KERNEL);
    EQUAL(operation_of(&file, awaited)->flags & either, WIRE_FLAG_AWAITS_KERNEL);
    EQUAL(operation_of(&file, untold)->flags & either, has_lost_count ? 0 : WIRE_FLAG_AWAITS_KERNEL);
    EQUAL(find_record(&file, WIRE_ENQUEUED, 1)->flags & either, 0);
    close_file(&file);
}

const struct scenario waiting_scenarios[] = {
    {"a step overtakes another", play_overtaken, NEWEST_VERSION, 4},
    {"a receive is posted again", play_posted_again, NEWEST_VERSION, OLDEST_VERSION},
    {"a long transfer", play_long, NEWEST_VERSION, 4},
    {"eight steps ahead", play_pipelined, NEWEST_VERSION, NEWEST_VERSION},
    {"a sender hangs", play_hang_of_sender, NEWEST_VERSION, OLDEST_VERSION},
    {"a receiver hangs", play_hang_of_receiver, NEWEST_VERSION, NEWEST_VERSION},
    {"steps are not sampled", play_unsampled, NEWEST_VERSION, OLDEST_VERSION},
    {"a kernel is awaited", play_kernel_awaited, NEWEST_VERSION, 4},
    {"a wait of ten hours", play_hours, NEWEST_VERSION, NEWEST_VERSION},
    {NULL, NULL, 0, 0},
};
