/* How much is seen: levels, sampling that all ranks agree on, and who the file says it belongs to. */
#define _POSIX_C_SOURCE 200809L

#include "harness.h"
#include "scenarios.h"

#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* --- levels --- */

struct expectation {
    unsigned mask;
    unsigned enqueued, transfers, steps;
};

static void play_level(int version, const char *level, struct expectation expected)
{
    setenv("LOCKSTEP_DETAIL", level, 1);
    setenv("LOCKSTEP_KERNEL", "off", 1);
    const struct nccl nccl = load_plugin(version);
    use_replay_clock(&nccl);
    now_ns = 700;
    const struct comm comm = open_comm(&nccl, COMM_ID, 0, 2);
    EQUAL(nccl_mask, expected.mask);
    run_all_reduce(&comm, 0);
    struct ringfile file = read_own_file();
    check_file(&file);
    EQUAL(status_of(&file)->mask, expected.mask);
    EQUAL(count_records(&file, WIRE_ENQUEUED), expected.enqueued);
    EQUAL(count_records(&file, WIRE_TRANSFER_CLOSED), expected.transfers);
    EQUAL(count_records(&file, WIRE_STEP_CLOSED), expected.steps);
    close_file(&file);
}

static void play_off(int version)
{
    play_level(version, "off", (struct expectation){.mask = ABI_COLL});
}

static void play_operations(int version)
{
    play_level(version, "operations", (struct expectation){.mask = ABI_COLL | ABI_P2P, .enqueued = 1});
}

static void play_transfers(int version)
{
    play_level(version, "transfers",
               (struct expectation){.mask = ABI_COLL | ABI_P2P | ABI_PROXY_OP, .enqueued = 1, .transfers = 2});
}

static void play_steps(int version)
{
    play_level(version, "steps", (struct expectation){.mask = ABI_COLL | ABI_P2P | ABI_PROXY_OP | ABI_PROXY_STEP,
                                                      .enqueued = 1, .transfers = 2, .steps = 2});
}

/* Every callback is kept, and the operations as usual. */
static void play_trace(int version)
{
    setenv("LOCKSTEP_DETAIL", "trace", 1);
    setenv("LOCKSTEP_KERNEL", "off", 1);
    const struct nccl nccl = load_plugin(version);
    use_replay_clock(&nccl);
    const struct comm comm = open_comm(&nccl, COMM_ID, 0, 2);
    now_ns = 700;
    run_all_reduce(&comm, 3);
    struct ringfile file = read_own_file();
    check_file(&file);
    EQUAL(count_records(&file, WIRE_ENQUEUED), 1);
    EQUAL(count_records(&file, WIRE_TRANSFER_CLOSED), 2);
    const unsigned callbacks = count_records(&file, WIRE_CALLBACK);
    unsigned phases[3] = {0, 0, 0}, colls = 0;
    for (unsigned i = 0; i < callbacks; i++) {
        const struct wire_callback *callback = &find_record(&file, WIRE_CALLBACK, i)->callback;

        CHECK(callback->phase < 3 && callback->thread != 0 && callback->ticks == 700);
        phases[callback->phase]++;
        if (callback->phase != 0 || callback->type != 1)
            continue;
        colls++;
        EQUAL(callback->coll.seq, 3);
        EQUAL(callback->coll.count, 1024);
        EQUAL(callback->coll.func, WIRE_ALL_REDUCE);
    }
    EQUAL(colls, 1);
    EQUAL(phases[0], phases[1]); /* in trace every start has a handle and so a stop */
    CHECK(phases[2] >= 5);
    close_file(&file);
}

/* --- sampling --- */

enum { OPERATIONS = 2000 };

struct sampled {
    uint8_t collectives[OPERATIONS], pairs[OPERATIONS];
};

static bool is_sampled(const void *handle)
{
    return (uintptr_t)handle >> WIRE_SAMPLED_SHIFT & 1;
}

/* Rank 1 sends to rank 2: each numbers and samples on its own. */
static void sample_as_rank(int version, int rank, int output)
{
    struct sampled sampled;
    const struct nccl nccl = load_plugin(version);
    const struct comm comm = open_comm(&nccl, COMM_ID, rank, 4);

    for (int i = 0; i < OPERATIONS; i++) {
        sampled.collectives[i] = is_sampled(enqueue_all_reduce(&comm, (uint64_t)i));
        sampled.pairs[i] = is_sampled(enqueue_p2p(&comm, rank == 1, rank == 1 ? 2 : 1, 64));
    }
    _exit(write(output, &sampled, sizeof sampled) == sizeof sampled ? 0 : 1);
}

static struct sampled ask_rank(int version, int rank)
{
    static struct sampled sampled;
    int pipe_ends[2], status;

    CHECK(pipe(pipe_ends) == 0);
    const pid_t child = fork();
    if (child == 0)
        sample_as_rank(version, rank, pipe_ends[1]);
    CHECK(child > 0 && waitpid(child, &status, 0) == child && status == 0);
    CHECK(read(pipe_ends[0], &sampled, sizeof sampled) == sizeof sampled);
    return sampled;
}

static int count_set(const uint8_t *flags)
{
    int set = 0;

    for (int i = 0; i < OPERATIONS; i++)
        set += flags[i];
    return set;
}

static void play_sampling(int version)
{
    setenv("LOCKSTEP_SAMPLE", "0.25", 1);
    const struct sampled sender = ask_rank(version, 1), receiver = ask_rank(version, 2);
    const int collectives = count_set(sender.collectives), pairs = count_set(sender.pairs);

    CHECK(memcmp(&sender, &receiver, sizeof sender) == 0);
    /* A quarter of 2,000 is 500 with a standard deviation of 19; the hash is fixed, so this holds always or never. */
    CHECK(collectives > 400 && collectives < 600);
    CHECK(pairs > 400 && pairs < 600);
    CHECK(memcmp(sender.collectives, sender.pairs, OPERATIONS) != 0);
}

/* --- identity --- */

static void play_identity(int version)
{
    setenv("LOCKSTEP_HOST", "h3", 1);
    setenv("LOCKSTEP_JOB", "pretrain-7", 1);
    setenv("RANK", "17", 1);
    setenv("WORLD_SIZE", "64", 1);
    setenv("LOCAL_RANK", "1", 1);
    setenv("LOCKSTEP_RING_MIB", "16", 1);
    const struct nccl nccl = load_plugin(version);
    open_comm(&nccl, COMM_ID, 0, 2);
    struct ringfile file = read_own_file();
    const struct wire_header *header = header_of(&file);
    check_file(&file);
    CHECK(strcmp(header->host, "h3") == 0 && strcmp(header->job, "pretrain-7") == 0);
    CHECK(strcmp(header->plugin_version, LOCKSTEP_VERSION) == 0);
    EQUAL(header->world_rank, 17);
    EQUAL(header->world_size, 64);
    EQUAL(header->local_rank, 1);
    EQUAL(header->pid, getpid());
    EQUAL(header->nccl_version, usual_release(version));
    CHECK(header->clock_kind != WIRE_CLOCK_REPLAY);
    CHECK(file.size > 15 << 20 && file.size <= 16 << 20);
    EQUAL(log_lines(), version < 4 ? 0 : 1);
    CHECK(version < 4 || is_logged("lockstep " LOCKSTEP_VERSION));
    close_file(&file);
}

const struct scenario detail_scenarios[] = {
    {"level off", play_off, NEWEST_VERSION, NEWEST_VERSION},
    {"level operations", play_operations, NEWEST_VERSION, OLDEST_VERSION},
    {"level transfers", play_transfers, NEWEST_VERSION, OLDEST_VERSION},
    {"level steps", play_steps, NEWEST_VERSION, OLDEST_VERSION},
    {"level trace", play_trace, NEWEST_VERSION, OLDEST_VERSION},
    {"ranks sample the same operations", play_sampling, NEWEST_VERSION, OLDEST_VERSION},
    {"identity", play_identity, NEWEST_VERSION, OLDEST_VERSION},
    {NULL, NULL, 0, 0},
};
