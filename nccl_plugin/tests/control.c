/* The control page: what the collector writes there takes effect with the next operations. */
#define _POSIX_C_SOURCE 200809L

#include "harness.h"
#include "scenarios.h"

#include <stdlib.h>

struct session {
    struct nccl nccl;
    struct comm comm;
    uint64_t seq;
};

static struct session *begin(int version)
{
    static struct session session;

    setenv("LOCKSTEP_KERNEL", "off", 1);
    session.nccl = load_plugin(version);
    use_replay_clock(&session.nccl);
    now_ns = 100;
    session.comm = open_comm(&session.nccl, COMM_ID, 0, 2);
    return &session;
}

static void play_off_and_on(int version)
{
    struct session *ours = begin(version);

    run_all_reduce(&ours->comm, ours->seq++);
    enqueue_p2p(&ours->comm, true, 1, 8);
    enqueue_p2p(&ours->comm, true, 1, 8);
    request(&ours->comm, WIRE_OFF, 1, 0, &ours->seq);
    EQUAL(nccl_mask, ABI_COLL);
    struct ringfile file = read_own_file();
    EQUAL(status_of(&file)->level, WIRE_OFF);
    const uint64_t records = sum_of_heads(&file);
    for (int i = 0; i < 100; i++)
        run_all_reduce(&ours->comm, ours->seq++);
    EQUAL(sum_of_heads(&file), records); /* off means nothing */
    request(&ours->comm, WIRE_STEPS, 1, 0, &ours->seq);
    EQUAL(status_of(&file)->level, WIRE_STEPS);
    EQUAL(status_of(&file)->epoch, 2);
    const unsigned before = count_records(&file, WIRE_ENQUEUED);
    run_all_reduce(&ours->comm, ours->seq++);
    EQUAL(find_record(&file, WIRE_ENQUEUED, before)->enqueued.epoch, 2);
    EQUAL(find_record(&file, WIRE_ENQUEUED, before)->enqueued.seq, ours->seq - 1);
    CHECK(find_record(&file, WIRE_ENQUEUED, before)->flags & WIRE_FLAG_SEQ_VALID);
    enqueue_p2p(&ours->comm, true, 1, 8); /* counted anew, since nobody knows how many went unseen */
    EQUAL(find_record(&file, WIRE_ENQUEUED, before + 1)->enqueued.seq, 0);
    EQUAL(find_record(&file, WIRE_ENQUEUED, before + 1)->enqueued.epoch, 2);
    EQUAL(find_row(&file, COMM_ID, WIRE_SEND, 1)->epoch, 2);
    check_file(&file);
    close_file(&file);
}

/* What is open when it goes off is closed when it ends, so that no hang is left behind that is none. */
static void play_off_with_open_transfers(int version)
{
    struct session *ours = begin(version);
    void *transfer = begin_transfer(&ours->comm, enqueue_all_reduce(&ours->comm, ours->seq++), 1, 0, 1, true);

    request(&ours->comm, WIRE_OFF, 1, 0, &ours->seq);
    stop(&ours->comm, transfer);
    request(&ours->comm, WIRE_STEPS, 1, 0, &ours->seq);
    run_all_reduce(&ours->comm, ours->seq++);
    struct ringfile file = read_own_file();
    check_file(&file);
    EQUAL(count_open_transfers(&file), 0);
    close_file(&file);
}

static void play_share(int version)
{
    struct session *ours = begin(version);
    struct ringfile file = read_own_file();

    EQUAL(status_of(&file)->share, 65536);
    request(&ours->comm, WIRE_STEPS, 0, 0, &ours->seq);
    EQUAL(status_of(&file)->share, 0);
    const unsigned steps = count_records(&file, WIRE_STEP_CLOSED);
    for (int i = 0; i < 100; i++)
        run_all_reduce(&ours->comm, ours->seq++);
    EQUAL(count_records(&file, WIRE_STEP_CLOSED), steps);
    request(&ours->comm, WIRE_STEPS, 0.5, 0, &ours->seq);
    const unsigned half = count_records(&file, WIRE_STEP_CLOSED);
    for (int i = 0; i < 200; i++)
        run_all_reduce(&ours->comm, ours->seq++);
    const unsigned sampled = (count_records(&file, WIRE_STEP_CLOSED) - half) / 2;
    CHECK(sampled > 60 && sampled < 140); /* of 200, by a fixed hash */
    EQUAL(status_of(&file)->epoch, 1); /* recording was never off */
    check_file(&file);
    close_file(&file);
}

static void play_trace_on_request(int version)
{
    struct session *ours = begin(version);

    run_all_reduce(&ours->comm, ours->seq++);
    struct ringfile file = read_own_file();
    EQUAL(count_records(&file, WIRE_CALLBACK), 0);
    request(&ours->comm, WIRE_TRACE, 1, 0, &ours->seq);
    run_all_reduce(&ours->comm, ours->seq++);
    const unsigned callbacks = count_records(&file, WIRE_CALLBACK);
    CHECK(callbacks > 10);
    request(&ours->comm, WIRE_OPERATIONS, 1, 0, &ours->seq);
    EQUAL(nccl_mask, ABI_COLL | ABI_P2P);
    const unsigned after = count_records(&file, WIRE_CALLBACK);
    run_all_reduce(&ours->comm, ours->seq++);
    EQUAL(count_records(&file, WIRE_CALLBACK), after);
    check_file(&file);
    close_file(&file);
}

/* What makes no sense is acknowledged and changes nothing. */
static void play_senseless_request(int version)
{
    struct session *ours = begin(version);
    struct ringfile file = read_own_file();

    request(&ours->comm, WIRE_TRACE + 1, 1, 0, &ours->seq);
    EQUAL(status_of(&file)->level, WIRE_STEPS);
    request(&ours->comm, 0xffffffff, 1, 0xffffffff, &ours->seq);
    EQUAL(status_of(&file)->level, WIRE_STEPS);
    request(&ours->comm, WIRE_STEPS, 2, 0, &ours->seq);
    EQUAL(status_of(&file)->share, 65536);
    request(&ours->comm, WIRE_STEPS, 1, 7000, &ours->seq);
    EQUAL(status_of(&file)->budget_ppm, 7000);
    request(&ours->comm, WIRE_STEPS, 1, 0, &ours->seq);
    EQUAL(status_of(&file)->budget_ppm, 7000); /* 0 leaves it as it is */
    check_file(&file);
    close_file(&file);
}

/* --- requests while threads work --- */

struct worker_of_many {
    const struct comm *comm;
    bool requests;
};

static void *work_or_request(void *argument)
{
    static const unsigned levels[] = {WIRE_OFF, WIRE_STEPS, WIRE_TRANSFERS, WIRE_TRACE, WIRE_OPERATIONS, WIRE_STEPS};
    const struct worker_of_many *ours = argument;
    uint64_t seq = 0;

    if (ours->requests)
        for (int i = 0; i < 60; i++)
            request(ours->comm, levels[i % 6], (i % 5) / 4.0, i % 7 ? 0 : 1000, &seq);
    else
        for (; seq < 3000; seq++)
            run_all_reduce(ours->comm, seq);
    return NULL;
}

static void play_requests_under_load(int version)
{
    enum { THREADS = 4 };
    const struct nccl nccl = load_plugin(version);
    struct comm comms[THREADS];
    struct worker_of_many workers[THREADS];

    for (int i = 0; i < THREADS; i++) {
        comms[i] = open_comm(&nccl, COMM_ID + (uint64_t)i, 0, 2);
        workers[i] = (struct worker_of_many){&comms[i], i == 0};
    }
    run_threads(THREADS, work_or_request, workers, sizeof *workers);
    struct ringfile file = read_own_file();
    check_file(&file);
    EQUAL(status_of(&file)->epoch, 1 + 10);
    EQUAL(status_of(&file)->level, WIRE_STEPS);
    close_file(&file);
}

const struct scenario control_scenarios[] = {
    {"off and on again", play_off_and_on, NEWEST_VERSION, OLDEST_VERSION},
    {"off while transfers are open", play_off_with_open_transfers, NEWEST_VERSION, NEWEST_VERSION},
    {"another share", play_share, NEWEST_VERSION, NEWEST_VERSION},
    {"a trace on request", play_trace_on_request, NEWEST_VERSION, OLDEST_VERSION},
    {"requests that make no sense", play_senseless_request, NEWEST_VERSION, NEWEST_VERSION},
    {"requests while threads work", play_requests_under_load, NEWEST_VERSION, NEWEST_VERSION},
    {NULL, NULL, 0, 0},
};
