/* More of everything than there is room for: communicators, threads, and both coming and going at once. */
#define _POSIX_C_SOURCE 200809L

#include "harness.h"
#include "scenarios.h"

#include <pthread.h>
#include <sched.h>
#include <stdlib.h>

/* --- communicators --- */

static void play_communicators_in_turn(int version)
{
    enum { TURNS = 3 * WIRE_COMMS };
    const struct nccl nccl = load_plugin(version);

    for (uint64_t i = 0; i < TURNS; i++) {
        const struct comm comm = open_comm(&nccl, COMM_ID + i, 0, 2);

        run_all_reduce(&comm, i);
        close_comm(&comm);
    }
    struct ringfile file = read_own_file();
    check_file(&file);
    EQUAL(status_of(&file)->refused_comms, 0);
    EQUAL(status_of(&file)->refused_rows, 0);
    EQUAL(find_row(&file, COMM_ID + TURNS - 1, WIRE_ALL_REDUCE, -1)->done, TURNS);
    EQUAL(place_of_comm(&file, COMM_ID), WIRE_NO_COMM); /* its place went to a later one */
    close_file(&file);
}

/* All open at once, and some more: those are not seen, and the others are not disturbed. */
static void play_communicators_at_once(int version)
{
    enum { TOO_MANY = WIRE_COMMS + 100 };
    const struct nccl nccl = load_plugin(version);
    struct comm *comms = calloc(TOO_MANY, sizeof *comms);

    CHECK(comms != NULL);
    for (int i = 0; i < TOO_MANY; i++) {
        comms[i] = open_comm(&nccl, COMM_ID + (uint64_t)i, 0, 2);
        CHECK(comms[i].context != NULL);
    }
    for (int i = 0; i < TOO_MANY; i++)
        run_all_reduce(&comms[i], 1);
    struct ringfile file = read_own_file();
    check_file(&file);
    EQUAL(status_of(&file)->refused_comms, TOO_MANY - WIRE_COMMS);
    for (int i = 0; i < WIRE_COMMS; i += 97)
        EQUAL(find_row(&file, COMM_ID + (uint64_t)i, WIRE_ALL_REDUCE, -1)->done, 2);
    EQUAL(count_open_transfers(&file), 0);
    for (int i = 0; i < TOO_MANY; i++)
        close_comm(&comms[i]);
    const struct comm again = open_comm(&nccl, 42, 0, 2);
    run_all_reduce(&again, 6);
    EQUAL(find_row(&file, 42, WIRE_ALL_REDUCE, -1)->done, 7);
    EQUAL(status_of(&file)->refused_comms, TOO_MANY - WIRE_COMMS);
    close_file(&file);
    free(comms);
}

/* A row per peer: an all-to-all among many ranks asks for more rows than there are. */
static void play_too_many_peers(int version)
{
    enum { PEERS = 2 * WIRE_ROWS };
    const struct nccl nccl = load_plugin(version);
    const struct comm comm = open_comm(&nccl, COMM_ID, PEERS, PEERS + 1);

    for (int peer = 0; peer < PEERS; peer++)
        CHECK(enqueue_p2p(&comm, true, peer, 1) != NULL);
    struct ringfile file = read_own_file();
    check_file(&file);
    CHECK(status_of(&file)->refused_rows >= PEERS - WIRE_ROWS);
    EQUAL(sum_of_heads(&file), PEERS); /* each is recorded, with a row or without */
    close_file(&file);
}

/* --- threads --- */

struct caller {
    const struct comm *comm;
    pthread_barrier_t *together;
    uint64_t operations;
};

/* The records that one all-reduce makes on the thread that plays all of it: enqueued, two transfers, two steps. */
enum { RECORDS = 5 };

static void *call(void *argument)
{
    const struct caller *caller = argument;

    if (caller->together != NULL)
        pthread_barrier_wait(caller->together);
    for (uint64_t seq = 0; seq < caller->operations; seq++)
        run_all_reduce(caller->comm, seq);
    if (caller->together != NULL)
        pthread_barrier_wait(caller->together); /* nobody gives its ring back before all have asked for one */
    return NULL;
}

static uint64_t sum_of_lost(const struct ringfile *file)
{
    uint64_t lost = 0;

    for (unsigned i = 0; i < header_of(file)->rings.count; i++)
        lost += ring_at(file, i)->lost;
    return lost;
}

static unsigned count_taken_rings(const struct ringfile *file)
{
    unsigned taken = 0;

    for (unsigned i = 1; i < header_of(file)->rings.count; i++)
        taken += ring_at(file, i)->thread != 0;
    return taken;
}

static void play_threads_at_once(int version)
{
    enum { THREADS = 256, OPERATIONS = 40 };
    struct caller callers[THREADS];
    struct comm comms[THREADS];
    pthread_barrier_t together;

    setenv("LOCKSTEP_KERNEL", "off", 1);
    const struct nccl nccl = load_plugin(version);
    pthread_barrier_init(&together, NULL, THREADS);
    for (int i = 0; i < THREADS; i++) {
        comms[i] = open_comm(&nccl, COMM_ID + (uint64_t)i, 0, 2);
        callers[i] = (struct caller){&comms[i], &together, OPERATIONS};
    }
    run_threads(THREADS, call, callers, sizeof *callers);
    pthread_barrier_destroy(&together);
    struct ringfile file = read_own_file();
    check_file(&file);
    /* Threads that share may have more open at once than there are places: what found none is counted, and so is what
     * ends of those that had to give up theirs. */
    const struct wire_status *status = status_of(&file);
    const uint64_t records = sum_of_heads(&file), all = THREADS * OPERATIONS * RECORDS;
    CHECK(records == all || (records < all && status->stale + status->overwritten > 0));
    EQUAL(status->shared_threads, THREADS - (header_of(&file)->rings.count - 1));
    CHECK(ring_at(&file, 0)->head > 0 && sum_of_lost(&file) < ring_at(&file, 0)->head);
    for (int i = 0; i < THREADS; i++)
        EQUAL(find_row(&file, COMM_ID + (uint64_t)i, WIRE_ALL_REDUCE, -1)->enqueued, OPERATIONS);
    EQUAL(count_open_transfers(&file), 0);
    EQUAL(count_taken_rings(&file), 0);
    close_file(&file);
}

static void play_threads_in_turn(int version)
{
    enum { THREADS = 10000 };

    setenv("LOCKSTEP_KERNEL", "off", 1);
    const struct nccl nccl = load_plugin(version);
    const struct comm comm = open_comm(&nccl, COMM_ID, 0, 2);
    struct caller caller = {.comm = &comm, .operations = 1};

    for (int i = 0; i < THREADS; i++)
        run_threads(1, call, &caller, sizeof caller);
    struct ringfile file = read_own_file();
    check_file(&file);
    EQUAL(status_of(&file)->shared_threads, 0); /* rings come back */
    EQUAL(sum_of_heads(&file), THREADS * RECORDS);
    EQUAL(count_taken_rings(&file), 0);
    close_file(&file);
}

/* --- everything at once: communicators open and close while others work --- */

struct player {
    const struct nccl *nccl;
    uint64_t id;
};

static void *open_and_close(void *argument)
{
    const struct player *player = argument;

    for (uint64_t round = 0; round < 50; round++) {
        const struct comm comm = open_comm(player->nccl, player->id << 32 | round, 0, 2);

        for (uint64_t seq = 0; seq < 20; seq++)
            run_all_reduce(&comm, seq);
        close_comm(&comm);
    }
    return NULL;
}

static void play_everything_at_once(int version)
{
    enum { THREADS = 5 };
    struct player players[THREADS];

    const struct nccl nccl = load_plugin(version);
    for (int i = 0; i < THREADS; i++)
        players[i] = (struct player){&nccl, (uint64_t)i + 1};
    run_threads(THREADS, open_and_close, players, sizeof *players);
    struct ringfile file = read_own_file();
    check_file(&file);
    EQUAL(count_files(), 1);
    EQUAL(log_lines(), 1); /* one greeting however many came first */
    EQUAL(status_of(&file)->stale + status_of(&file)->overwritten + status_of(&file)->shared_threads, 0);
    for (uint64_t id = 1; id <= THREADS; id++)
        EQUAL(find_row(&file, id << 32 | 49, WIRE_ALL_REDUCE, -1)->done, 20);
    close_file(&file);
}

/* --- the application enqueues while the proxy still moves what came before --- */

enum { IN_FLIGHT = 4, HANDED_OVER = 2000 };

struct pair {
    struct comm comm;
    void *operations[IN_FLIGHT];
    uint64_t enqueued, moved; /* written by one thread each */
};

static void *enqueue_all(void *argument)
{
    struct pair *pair = argument;

    for (uint64_t seq = 0; seq < HANDED_OVER; seq++) {
        while (seq - __atomic_load_n(&pair->moved, __ATOMIC_ACQUIRE) >= IN_FLIGHT)
            sched_yield();
        pair->operations[seq % IN_FLIGHT] = enqueue_all_reduce(&pair->comm, seq);
        __atomic_store_n(&pair->enqueued, seq + 1, __ATOMIC_RELEASE);
    }
    return NULL;
}

static void *move_all(void *argument)
{
    struct pair *pair = argument;

    for (uint64_t seq = 0; seq < HANDED_OVER; seq++) {
        while (__atomic_load_n(&pair->enqueued, __ATOMIC_ACQUIRE) <= seq)
            sched_yield();
        void *transfer = begin_transfer(&pair->comm, pair->operations[seq % IN_FLIGHT], 1, 0, 2, true);
        run_send_step(&pair->comm, transfer, 0, 64);
        run_send_step(&pair->comm, transfer, 1, 64);
        stop(&pair->comm, transfer);
        __atomic_store_n(&pair->moved, seq + 1, __ATOMIC_RELEASE);
    }
    return NULL;
}

static void *run_either(void *argument)
{
    struct pair **role = argument; /* the application's thread has a pair, the proxy's one with the lowest bit set */

    return (uintptr_t)*role & 1 ? move_all((void *)((uintptr_t)*role & ~(uintptr_t)1)) : enqueue_all(*role);
}

static void play_handing_over(int version)
{
    enum { PAIRS = 2 };
    const struct nccl nccl = load_plugin(version);
    struct pair pairs[PAIRS] = {{.moved = 0}};
    void *roles[2 * PAIRS];

    for (int i = 0; i < PAIRS; i++) {
        pairs[i].comm = open_comm(&nccl, COMM_ID + (uint64_t)i, 0, 2);
        roles[2 * i] = &pairs[i];
        roles[2 * i + 1] = (void *)((uintptr_t)&pairs[i] | 1);
    }
    run_threads(2 * PAIRS, run_either, roles, sizeof *roles);
    struct ringfile file = read_own_file();
    check_file(&file);
    for (int i = 0; i < PAIRS; i++) {
        const struct wire_row *row = find_row(&file, COMM_ID + (uint64_t)i, WIRE_ALL_REDUCE, -1);

        EQUAL(row->enqueued, HANDED_OVER);
        EQUAL(row->started, HANDED_OVER);
        EQUAL(row->done, HANDED_OVER);
    }
    EQUAL(sum_of_heads(&file), PAIRS * HANDED_OVER * 4);
    EQUAL(status_of(&file)->stale + status_of(&file)->overwritten, 0);
    close_file(&file);
}

const struct scenario crowd_scenarios[] = {
    {"12,288 communicators in turn", play_communicators_in_turn, NEWEST_VERSION, NEWEST_VERSION},
    {"more communicators than places", play_communicators_at_once, NEWEST_VERSION, NEWEST_VERSION},
    {"more peers than rows", play_too_many_peers, NEWEST_VERSION, NEWEST_VERSION},
    {"256 threads at once", play_threads_at_once, NEWEST_VERSION, NEWEST_VERSION},
    {"10,000 threads in turn", play_threads_in_turn, NEWEST_VERSION, NEWEST_VERSION},
    {"communicators come and go while others work", play_everything_at_once, NEWEST_VERSION, NEWEST_VERSION},
    {"enqueueing while transfers run", play_handing_over, NEWEST_VERSION, 4},
    {NULL, NULL, 0, 0},
};
