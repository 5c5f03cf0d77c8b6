/* What a healthy job makes of each version: an all-reduce on NCCL's threads, send and receive, CUDA graphs, kernels. */
#define _POSIX_C_SOURCE 200809L

#include "harness.h"
#include "scenarios.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

/* --- the tables --- */

static void check_table(const struct lockstep_profiler *table)
{
    CHECK(table != NULL);
    CHECK(strcmp(table->name, "lockstep") == 0);
    CHECK(table->init.v5 && table->start && table->stop && table->record && table->finalize);
    for (int i = 0; i < LOCKSTEP_RESERVED_MEMBERS; i++)
        CHECK(table->reserved[i] == NULL); /* for a reader of a longer table */
}

static void play_tables(int version)
{
    const struct nccl nccl = load_plugin(version);

    EQUAL(nccl.version, version);
    for (int other = OLDEST_VERSION; other <= NEWEST_VERSION; other++)
        check_table(find_table(nccl.library, other));
    CHECK(find_table(nccl.library, 0) == NULL && find_table(nccl.library, NEWEST_VERSION + 1) == NULL);
    CHECK(dlsym(nccl.library, "lockstep_replay_clock") != NULL);
    EQUAL(count_files(), 0); /* loading alone does nothing */
}

/* --- one all-reduce: who does what on which thread --- */

struct all_reduce {
    struct comm comm;
    void *operation, *receiving, *sending;
    void *recv_steps[2], *send_steps[2];
};

static void application_enqueues(void *argument)
{
    struct all_reduce *ours = argument;

    ours->operation = enqueue_all_reduce(&ours->comm, 7);
}

static void proxy_posts(void *argument)
{
    struct all_reduce *ours = argument;

    ours->receiving = begin_transfer(&ours->comm, ours->operation, 1, 3, 2, false);
    ours->sending = begin_transfer(&ours->comm, ours->operation, 1, 3, 2, true);
    for (int step = 0; step < 2; step++) {
        ours->recv_steps[step] = begin_step(&ours->comm, ours->receiving, step);
        pass_state(&ours->comm, ours->receiving, ours->recv_steps[step], ABI_RECV_WAIT, 0);
        ours->send_steps[step] = begin_step(&ours->comm, ours->sending, step);
        pass_state(&ours->comm, ours->sending, ours->send_steps[step], ABI_SEND_GPU_WAIT, 0);
    }
}

/* What the proxy does at which time; state 0 stops the step. */
static const struct moment {
    uint64_t at_ns;
    bool send;
    int step, state;
    uint64_t bytes;
} moments[] = {
    {2100, true, 0, ABI_SEND_PEER_WAIT, 0},
    {2120, true, 1, ABI_SEND_PEER_WAIT, 0}, /* not the oldest one: charged to nobody */
    {2130, true, 0, ABI_SEND_PEER_WAIT, 0}, /* repeats on every retry */
    {2150, true, 0, ABI_SEND_WAIT, 4096},
    {2200, true, 1, ABI_SEND_WAIT, 1024},
    {2300, true, 0, 0, 0},
    {2400, false, 0, ABI_RECV_FLUSH_WAIT, 4096},
    {2410, false, 0, ABI_RECV_GPU_WAIT, 4096},
    {2450, false, 1, ABI_RECV_FLUSH_WAIT, 1024},
    {2500, false, 0, 0, 0},
    {2500, true, 1, 0, 0},
    {2520, false, 1, ABI_RECV_GPU_WAIT, 1024},
    {2600, false, 1, 0, 0},
};

static void proxy_progresses(void *argument)
{
    struct all_reduce *ours = argument;

    for (size_t i = 0; i < sizeof moments / sizeof *moments; i++) {
        const struct moment *moment = &moments[i];
        void *step = (moment->send ? ours->send_steps : ours->recv_steps)[moment->step];

        now_ns = moment->at_ns;
        if (moment->state == 0)
            stop(&ours->comm, step);
        else
            pass_state(&ours->comm, moment->send ? ours->sending : ours->receiving, step, moment->state, moment->bytes);
    }
    stop(&ours->comm, ours->receiving);
    stop(&ours->comm, ours->sending);
}

static void check_enqueued(const struct ringfile *file, const struct all_reduce *ours)
{
    const struct wire_record *record = find_record(file, WIRE_ENQUEUED, 0);

    EQUAL(count_records(file, WIRE_ENQUEUED), 1);
    EQUAL(record->comm, place_of_comm(file, COMM_ID));
    EQUAL(record->flags, WIRE_FLAG_SAMPLED | WIRE_FLAG_SEQ_VALID);
    EQUAL(record->enqueued.operation, (uintptr_t)ours->operation);
    EQUAL(record->enqueued.seq, 7);
    EQUAL(record->enqueued.bytes, 4096);
    EQUAL(record->enqueued.ticks, 1000);
    EQUAL(record->enqueued.peer, -1);
    EQUAL(record->enqueued.root, -1);
    EQUAL(record->enqueued.replay, 0);
    EQUAL(record->enqueued.func, WIRE_ALL_REDUCE);
    EQUAL(record->enqueued.dtype, WIRE_FLOAT32);
    EQUAL(record->enqueued.algo, WIRE_RING);
    EQUAL(record->enqueued.proto, WIRE_SIMPLE);
    EQUAL(record->enqueued.channels, 1);
    EQUAL(record->enqueued.epoch, 1);
}

struct waits {
    uint64_t gpu, peer, wire, flush;
};

static void check_transfer(const struct wire_record *record, const struct all_reduce *ours, bool send, struct waits waits)
{
    EQUAL(record->flags & (WIRE_FLAG_SEND | WIRE_FLAG_STEPS), (send ? WIRE_FLAG_SEND : 0) | WIRE_FLAG_STEPS);
    EQUAL(record->transfer.operation, (uintptr_t)ours->operation);
    EQUAL(record->transfer.first_ticks, 2000);
    EQUAL(duration_of(record->transfer.duration), 600);
    EQUAL(record->transfer.bytes, 5120);
    EQUAL(record->transfer.peer, 1);
    EQUAL(record->transfer.pid, 0);
    EQUAL(record->transfer.channel_steps, 3u << 24 | 2);
    EQUAL(duration_of(record->transfer.waits[0]), waits.gpu);
    EQUAL(duration_of(record->transfer.waits[1]), waits.peer);
    EQUAL(duration_of(record->transfer.waits[2]), waits.wire);
    EQUAL(duration_of(record->transfer.waits[3]), waits.flush);
}

static void check_transfers(const struct ringfile *file, const struct all_reduce *ours)
{
    const bool sees_credit = ours->comm.nccl->version >= 4; /* older ones are not told of the wait for the receiver */

    EQUAL(count_records(file, WIRE_TRANSFER_CLOSED), 2);
    check_transfer(find_record(file, WIRE_TRANSFER_CLOSED, 0), ours, false,
                   (struct waits){.gpu = 90 + 80, .peer = 400, .flush = 10 + 20});
    check_transfer(find_record(file, WIRE_TRANSFER_CLOSED, 1), ours, true,
                   (struct waits){.gpu = sees_credit ? 100 : 150, .peer = sees_credit ? 50 : 0, .wire = 150 + 200});
}

static void check_step(const struct ringfile *file, bool send, uint32_t step, const uint32_t *marks, uint64_t bytes)
{
    unsigned found = 0;

    for (unsigned i = 0; i < count_records(file, WIRE_STEP_CLOSED); i++) {
        const struct wire_record *record = find_record(file, WIRE_STEP_CLOSED, i);

        if (record->step.step != step || ((record->flags & WIRE_FLAG_SEND) != 0) != send)
            continue;
        found++;
        EQUAL(record->step.posted_ticks, 2000);
        EQUAL(record->step.bytes, bytes);
        EQUAL(record->step.peer, 1);
        EQUAL(record->step.channel, 3);
        for (int mark = 0; mark < 3; mark++)
            EQUAL(duration_of(record->step.marks[mark]), marks[mark]);
    }
    EQUAL(found, 1);
}

static void check_steps(const struct ringfile *file, const struct all_reduce *ours)
{
    EQUAL(count_records(file, WIRE_STEP_CLOSED), 4);
    check_step(file, false, 0, (const uint32_t[]){400, 410, 500}, 4096);
    check_step(file, false, 1, (const uint32_t[]){450, 520, 600}, 1024);
    if (ours->comm.nccl->version < 4)
        return;
    check_step(file, true, 0, (const uint32_t[]){100, 150, 300}, 4096);
    check_step(file, true, 1, (const uint32_t[]){120, 200, 500}, 1024);
}

static void check_row(const struct ringfile *file)
{
    const struct wire_row *row = find_row(file, COMM_ID, WIRE_ALL_REDUCE, -1);

    EQUAL(row->enqueued, 8);
    EQUAL(row->started, 8);
    EQUAL(row->done, 8);
    EQUAL(row->enqueued_ticks, 1000);
    EQUAL(row->started_ticks, 2000);
    EQUAL(row->done_ticks, 2600);
    EQUAL(row->epoch, 1);
    EQUAL(row->replay, 0);
}

static void check_all_reduce(const struct all_reduce *ours)
{
    struct ringfile file = read_own_file();
    const struct wire_operation *operation = operation_of(&file, ours->operation);

    check_file(&file);
    EQUAL(header_of(&file)->clock_kind, WIRE_CLOCK_REPLAY);
    EQUAL(header_of(&file)->api_version, ours->comm.nccl->version);
    check_enqueued(&file, ours);
    check_transfers(&file, ours);
    check_steps(&file, ours);
    check_row(&file);
    EQUAL(operation->open, 0);
    EQUAL(operation->began, 2);
    EQUAL(transfer_of(&file, ours->sending)->last_ticks, 2600);
    EQUAL(transfer_of(&file, ours->sending)->done_steps, 2);
    EQUAL(count_open_transfers(&file), 0);
    EQUAL(status_of(&file)->stale + status_of(&file)->overwritten + status_of(&file)->shared_threads, 0);
    close_file(&file);
}

static void play_all_reduce(int version)
{
    struct worker *application = hire(), *proxy = hire();
    const struct nccl nccl = load_plugin(version);
    struct all_reduce ours = {.operation = NULL};

    setenv("LOCKSTEP_KERNEL", "off", 1);
    use_replay_clock(&nccl);
    now_ns = 500;
    ours.comm = open_comm(&nccl, COMM_ID, 0, 2);
    EQUAL(nccl_mask, ABI_COLL | ABI_P2P | ABI_PROXY_OP | ABI_PROXY_STEP);
    now_ns = 1000;
    work(application, application_enqueues, &ours);
    now_ns = 2000;
    work(proxy, proxy_posts, &ours);
    work(proxy, proxy_progresses, &ours);
    check_all_reduce(&ours);
    dismiss(proxy);
    now_ns = 9000;
    close_comm(&ours.comm);
    dismiss(application);
}

/* --- a communicator's place in the file --- */

static void play_communicators(int version)
{
    const struct nccl nccl = load_plugin(version);
    struct comm comms[3];

    use_replay_clock(&nccl);
    for (int i = 0; i < 3; i++) {
        now_ns = 100 + (uint64_t)i;
        comms[i] = open_comm(&nccl, COMM_ID + (uint64_t)i, i, 8);
        CHECK(comms[i].context != NULL && (i == 0 || comms[i].context != comms[i - 1].context));
    }
    for (uint64_t seq = 0; seq < 5; seq++)
        for (int i = 0; i < 3; i++)
            run_all_reduce(&comms[i], seq + 10 * (uint64_t)i);
    now_ns = 900;
    close_comm(&comms[1]);
    struct ringfile file = read_own_file();
    check_file(&file);
    for (int i = 0; i < 3; i++) {
        const struct wire_comm *comm = comm_at(&file, place_of_comm(&file, COMM_ID + (uint64_t)i));

        EQUAL(comm->init_ticks, 100 + i);
        EQUAL(comm->destroy_ticks, i == 1 ? 900 : 0);
        EQUAL(comm->rank, i);
        EQUAL(comm->nranks, version < 4 ? 0 : 8);
        EQUAL(comm->nnodes, version < 4 ? 0 : 2);
        CHECK(version < 4 || strcmp(comm->name, "world") == 0);
        EQUAL(find_row(&file, comm->id, WIRE_ALL_REDUCE, -1)->done, 5 + 10 * i);
    }
    EQUAL(count_records(&file, WIRE_ENQUEUED), 15);
    close_file(&file);
}

const struct scenario normal_scenarios[] = {
    {"tables", play_tables, NEWEST_VERSION, OLDEST_VERSION},
    {"an all-reduce on NCCL's threads", play_all_reduce, NEWEST_VERSION, OLDEST_VERSION},
    {"several communicators", play_communicators, NEWEST_VERSION, OLDEST_VERSION},
    {NULL, NULL, 0, 0},
};
