/* What the job pays, and what the plugin does about it. */
#define _POSIX_C_SOURCE 200809L

#include "harness.h"
#include "scenarios.h"

#include <stdlib.h>
#include <time.h>

enum {
    WINDOW = 16, /* operations, as in governor.c */
    BLOCK = 64,  /* windows */
    DECIDED = 23 * BLOCK, /* the first block is left out, and 22 tell */
    OPERATION_NS = 100000,
};

/* A made-up job: an operation takes its time, more of it while transfers are recorded. */
struct job {
    struct nccl nccl;
    struct comm comm;
    uint64_t seq;
    double price; /* share of its time that detail costs it */
    double noise;
    double burst; /* how many times longer one operation in a hundred takes */
    uint64_t chance;
};

static double draw(struct job *job)
{
    job->chance = job->chance * UINT64_C(6364136223846793005) + 1442695040888963407;
    return (double)(job->chance >> 11) / (double)(UINT64_C(1) << 53);
}

static void run_until(struct job *job, uint64_t window)
{
    for (; job->seq <= window * WINDOW; job->seq++) {
        const double slower = nccl_mask & ABI_PROXY_OP ? job->price : 0;
        const double burst = draw(job) < 0.01 ? job->burst : 0;

        now_ns += (uint64_t)(OPERATION_NS * (1 + slower + burst + job->noise * (draw(job) - 0.5)));
        enqueue_all_reduce(&job->comm, job->seq);
    }
}

static struct job *begin_within(const char *budget, int version, double price, double noise)
{
    static struct job job;

    job = (struct job){.price = price, .noise = noise, .chance = 1};
    setenv("LOCKSTEP_BUDGET", budget, 1);
    setenv("LOCKSTEP_SAMPLE", "1", 1);
    job.nccl = load_plugin(version);
    use_replay_clock(&job.nccl);
    job.comm = open_comm(&job.nccl, COMM_ID, 0, 2);
    return &job;
}

static struct job *begin(int version, double price, double noise)
{
    return begin_within("0.5", version, price, noise);
}

static void play_dear_job(int version)
{
    struct job *job = begin(version, 0.05, 0.01);
    struct ringfile file = read_own_file();

    run_until(job, DECIDED);
    CHECK(status_of(&file)->paid_ppm > 49000 && status_of(&file)->paid_ppm < 51000);
    EQUAL(status_of(&file)->paid_pairs, 44);
    CHECK(status_of(&file)->paid_error_ppm < 2000);
    EQUAL(status_of(&file)->dear, 1);
    EQUAL(status_of(&file)->level, WIRE_STEPS); /* a rank does not decide for its job */
    EQUAL(status_of(&file)->lowered, WIRE_NOT_LOWERED);
    request(&job->comm, WIRE_OPERATIONS, 1, 0, &job->seq);
    EQUAL(status_of(&file)->dear + status_of(&file)->paid_pairs, 0); /* nothing is known of another level */
    EQUAL(nccl_mask & ABI_PROXY_OP, 0);
    run_until(job, 2 * DECIDED); /* operations alone stay in sight, and are not measured */
    EQUAL(status_of(&file)->level, WIRE_OPERATIONS);
    EQUAL(status_of(&file)->dear + status_of(&file)->paid_pairs, 0);
    check_file(&file);
    close_file(&file);
}

static void play_cheap_job(int version)
{
    struct job *job = begin(version, 0.001, 0);
    struct ringfile file = read_own_file();

    run_until(job, DECIDED);
    CHECK(status_of(&file)->paid_ppm > 900 && status_of(&file)->paid_ppm < 1100);
    EQUAL(status_of(&file)->dear, 0);
    EQUAL(status_of(&file)->level, WIRE_STEPS);
    close_file(&file);
}

/* Windows that differ by a half from one another for no reason of ours, over many hours: nothing is decided on noise. */
static void play_noisy_job(int version)
{
    struct job *job = begin(version, 0, 2);
    struct ringfile file = read_own_file();

    job->burst = 20;
    for (uint64_t hour = 1; hour <= 20; hour++) {
        run_until(job, hour * DECIDED);
        EQUAL(status_of(&file)->dear, 0);
        CHECK((uint32_t)abs(status_of(&file)->paid_ppm) < 3 * status_of(&file)->paid_error_ppm);
    }
    close_file(&file);
}

/* Detail goes for 16 operations at a time, twice in 1,024, and each operation without it says so, unless its kernel
 * still tells its times; the level stays. */
static void play_turns(int version)
{
    setenv("LOCKSTEP_KERNEL", "off", 1);
    struct job *job = begin(version, 0, 0);
    struct ringfile file = read_own_file();
    unsigned in_a_row = 0, dark = 0;

    run_until(job, BLOCK);
    CHECK(nccl_mask & ABI_PROXY_OP);
    while (job->seq < 9 * BLOCK * WINDOW) {
        const bool is_dark = (nccl_mask & ABI_PROXY_OP) == 0;
        const void *operation;

        now_ns += OPERATION_NS;
        operation = enqueue_all_reduce(&job->comm, job->seq++);
        EQUAL((operation_of(&file, operation)->flags & WIRE_FLAG_UNTIMED) != 0, is_dark);
        in_a_row = is_dark ? in_a_row + 1 : 0;
        dark += is_dark;
        CHECK(in_a_row <= WINDOW);
        EQUAL(status_of(&file)->level, WIRE_STEPS);
    }
    EQUAL(dark, 8 * 2 * WINDOW);
    for (dark = 0; job->seq < 81 * BLOCK * WINDOW; job->seq++) { /* what is known well is looked at rarely */
        dark += job->seq >= 41 * BLOCK * WINDOW && (nccl_mask & ABI_PROXY_OP) == 0;
        now_ns += OPERATION_NS;
        enqueue_all_reduce(&job->comm, job->seq);
    }
    EQUAL(dark, 5 * 2 * WINDOW);
    EQUAL(status_of(&file)->epoch, 1); /* operations were seen all the time */
    check_file(&file);
    close_file(&file);
}

/* Detail comes back half a second after it went, whatever stalls meanwhile, and never goes where operations are slow. */
static void play_stall(int version)
{
    struct job *job = begin(version, 0, 0);
    struct ringfile file = read_own_file();

    run_until(job, BLOCK);
    while (nccl_mask & ABI_PROXY_OP) {
        now_ns += OPERATION_NS;
        enqueue_all_reduce(&job->comm, job->seq++);
    }
    now_ns += UINT64_C(600000000);
    enqueue_all_reduce(&job->comm, job->seq++);
    CHECK(nccl_mask & ABI_PROXY_OP);
    for (const uint64_t end = job->seq + 2 * BLOCK * WINDOW; job->seq < end; job->seq++) {
        now_ns += 400 * OPERATION_NS;
        enqueue_all_reduce(&job->comm, job->seq);
        CHECK(nccl_mask & ABI_PROXY_OP);
    }
    close_file(&file);
}

static void play_without_budget(int version)
{
    struct job *job = begin_within("0", version, 0.5, 0);
    struct ringfile file = read_own_file();

    EQUAL(status_of(&file)->budget_ppm, 0);
    run_until(job, DECIDED);
    EQUAL(status_of(&file)->paid_pairs, 0);
    EQUAL(status_of(&file)->level, WIRE_STEPS);
    close_file(&file);
}

/* A thread that does nothing but call us: a share of its time far above any budget. */
static void play_dear_callbacks(int version)
{
    struct timespec begin_at, now;

    setenv("LOCKSTEP_BUDGET", "0.5", 1);
    const struct nccl nccl = load_plugin(version);
    const struct comm comm = open_comm(&nccl, COMM_ID, 0, 2);
    struct ringfile file = read_own_file();

    clock_gettime(CLOCK_MONOTONIC, &begin_at);
    do {
        for (int i = 0; i < 1000; i++)
            enqueue_p2p(&comm, true, 1, 1024); /* no windows: these have no number that all ranks share */
        clock_gettime(CLOCK_MONOTONIC, &now);
    } while (status_of(&file)->lowered == WIRE_NOT_LOWERED && now.tv_sec < begin_at.tv_sec + 60);
    EQUAL(status_of(&file)->lowered, WIRE_LOWERED_BY_CALLBACKS);
    CHECK(status_of(&file)->callback_ppm > 5000);
    EQUAL(status_of(&file)->level, WIRE_TRANSFERS);
    close_file(&file);
}

const struct scenario governor_scenarios[] = {
    {"detail costs the job 5 %", play_dear_job, NEWEST_VERSION, 4},
    {"detail costs the job 0.1 %", play_cheap_job, NEWEST_VERSION, NEWEST_VERSION},
    {"a noisy job that pays nothing", play_noisy_job, NEWEST_VERSION, NEWEST_VERSION},
    {"turns by the sequence number", play_turns, NEWEST_VERSION, 4},
    {"a stall while detail is away", play_stall, NEWEST_VERSION, NEWEST_VERSION},
    {"no budget", play_without_budget, NEWEST_VERSION, NEWEST_VERSION},
    {"callbacks over the budget", play_dear_callbacks, NEWEST_VERSION, NEWEST_VERSION},
    {NULL, NULL, 0, 0},
};
