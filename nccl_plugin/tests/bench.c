/* What a callback costs its thread, in nanoseconds of CPU time, beside what any recorder must pay: one reading of the
 * counter and one store of 64 bytes into a ring of the same size, called in the same way.
 *
 * usage: bench PATH_OF_THE_PLUGIN ROUNDS; prints "KIND THREADS NANOSECONDS LIMIT" per callback and round. In every round
 * each thread takes turns between the callbacks and the limit, so that both see the same machine.
 */
#define _DEFAULT_SOURCE

#include "harness.h"
#include "limit.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { BATCH = 4000, BATCHES = 12, MOST_THREADS = 4, SEQ_AT = 24 };

/* --- the callbacks --- */

struct player {
    struct comm comm;
    pthread_barrier_t *together;
    const struct kind *kind;
    struct limit limit;
    unsigned char coll[136], transfer[136], step[136], kernel[136], group_api[136], coll_api[136], group[136];
    void *unsampled, *sampled; /* transfers of operations */
    uint64_t seq;
    double callback_ns, limit_ns; /* results */
};

static void *begin(struct player *player, const unsigned char *descriptor)
{
    void *handle = NULL;

    player->comm.nccl->table->start(player->comm.context, &handle, descriptor);
    return handle;
}

static void *enqueue(struct player *player)
{
    memcpy(player->coll + SEQ_AT, &player->seq, sizeof player->seq);
    player->seq++;
    void *operation = begin(player, player->coll);
    player->comm.nccl->table->stop(operation);
    return operation;
}

static void play_operation(struct player *player) { enqueue(player); }

static void move(struct player *player)
{
    void *transfer = begin(player, player->transfer);

    player->comm.nccl->table->record(transfer, ABI_OP_IN_PROGRESS, NULL);
    player->comm.nccl->table->stop(transfer);
}

static void begin_unsampled_step(struct player *player)
{
    memcpy(player->step + 8, &player->unsampled, sizeof player->unsampled);
    begin(player, player->step);
}

static void run_sampled_step(struct player *player)
{
    const struct lockstep_profiler *table = player->comm.nccl->table;
    const uint64_t bytes = 131072;

    memcpy(player->step + 8, &player->sampled, sizeof player->sampled);
    void *step = begin(player, player->step);
    table->record(step, ABI_SEND_GPU_WAIT, &bytes);
    table->record(step, ABI_SEND_PEER_WAIT, &bytes);
    table->record(step, ABI_SEND_WAIT, &bytes);
    table->stop(step);
}

static void run_kernel(struct player *player)
{
    const uint64_t gpu_ns = 1;
    void *kernel = begin(player, player->kernel);

    player->comm.nccl->table->record(kernel, ABI_KERNEL_STOP, &gpu_ns);
    player->comm.nccl->table->stop(kernel);
}

/* What NCCL makes of an all-reduce on one channel whose steps are not sampled. */
static void run_whole_operation(struct player *player)
{
    begin(player, player->group_api);
    begin(player, player->coll_api);
    begin(player, player->group);
    void *operation = enqueue(player);
    memcpy(player->transfer + 8, &operation, sizeof operation);
    memcpy(player->kernel + 8, &operation, sizeof operation);
    for (int direction = 0; direction < 2; direction++) {
        move(player);
        begin_unsampled_step(player);
        begin_unsampled_step(player);
    }
    run_kernel(player);
}

static const struct kind {
    const char *name;
    void (*play)(struct player *player);
    int callbacks;
} kinds[] = {
    {"operation", play_operation, 2},
    {"transfer", move, 3},
    {"unsampled-step", begin_unsampled_step, 1},
    {"sampled-step", run_sampled_step, 5},
    {"kernel-channel", run_kernel, 3},
    {"all-reduce", run_whole_operation, 18},
};

/* --- measuring --- */

static double thread_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (double)now.tv_sec * 1e9 + (double)now.tv_nsec;
}

static double time_callbacks(struct player *player)
{
    const int repeats = BATCH / player->kind->callbacks;
    const double began = thread_ns();

    for (int i = 0; i < repeats; i++)
        player->kind->play(player);
    return (thread_ns() - began) / (repeats * player->kind->callbacks);
}

static double time_limit(struct player *player)
{
    const double began = thread_ns();

    for (uint64_t i = 0; i < BATCH; i++)
        called_limit(&player->limit, i);
    return (thread_ns() - began) / BATCH;
}

static int compare(const void *one, const void *other)
{
    const double difference = *(const double *)one - *(const double *)other;

    return difference < 0 ? -1 : difference > 0;
}

static double median(double *values)
{
    qsort(values, BATCHES, sizeof *values, compare);
    return values[BATCHES / 2];
}

/* A transfer of an operation that is sampled, or of one that is not. */
static void *begin_transfer_of(struct player *player, bool sampled)
{
    void *operation;

    do
        operation = enqueue(player);
    while (((uintptr_t)operation >> WIRE_SAMPLED_SHIFT & 1) != sampled);
    memcpy(player->transfer + 8, &operation, sizeof operation);
    memcpy(player->kernel + 8, &operation, sizeof operation);
    void *transfer = begin(player, player->transfer);
    CHECK(transfer != NULL);
    return transfer;
}

static void *measure(void *argument)
{
    struct player *player = argument;
    double callback_ns[BATCHES], limit_ns[BATCHES];

    player->sampled = begin_transfer_of(player, true);
    player->unsampled = begin_transfer_of(player, false);
    pthread_barrier_wait(player->together);
    for (int i = 0; i < BATCHES; i++) {
        callback_ns[i] = time_callbacks(player);
        limit_ns[i] = time_limit(player);
    }
    pthread_barrier_wait(player->together); /* nobody has the machine to itself before all are done */
    player->comm.nccl->table->stop(player->sampled);
    player->comm.nccl->table->stop(player->unsampled);
    player->callback_ns = median(callback_ns);
    player->limit_ns = median(limit_ns);
    return NULL;
}

static void describe(struct player *player)
{
    const struct comm *comm = &player->comm;
    const struct event coll = {.type = ABI_COLL, .func = "AllReduce", .dtype = "ncclBfloat16", .algo = "RING",
                               .proto = "SIMPLE", .count = 1 << 19, .channels = 2};
    const struct event transfer = {.type = ABI_PROXY_OP, .pid = (int)getpid(), .peer = 1, .steps = 4, .send = 1};
    struct event api = coll;

    api.type = ABI_COLL_API;
    write_descriptor(NEWEST_VERSION, player->coll, comm, &coll);
    write_descriptor(NEWEST_VERSION, player->coll_api, comm, &api);
    write_descriptor(NEWEST_VERSION, player->transfer, comm, &transfer);
    write_descriptor(NEWEST_VERSION, player->step, comm, &(struct event){.type = ABI_PROXY_STEP});
    write_descriptor(NEWEST_VERSION, player->kernel, comm, &(struct event){.type = ABI_KERNEL_CHANNEL});
    write_descriptor(NEWEST_VERSION, player->group_api, comm, &(struct event){.type = ABI_GROUP_API});
    write_descriptor(NEWEST_VERSION, player->group, comm, &(struct event){.type = ABI_GROUP});
}

static void run_round(const struct nccl *nccl, struct player *players, const struct kind *kind, int threads)
{
    pthread_barrier_t together;
    double callback_ns = 0, limit_ns = 0;

    pthread_barrier_init(&together, NULL, (unsigned)threads);
    for (int i = 0; i < threads; i++) {
        players[i].comm = open_comm(nccl, COMM_ID + (uint64_t)i, i, MOST_THREADS);
        players[i].together = &together;
        players[i].kind = kind;
        describe(&players[i]);
    }
    run_threads(threads, measure, players, sizeof *players);
    for (int i = 0; i < threads; i++) {
        callback_ns += players[i].callback_ns / threads;
        limit_ns += players[i].limit_ns / threads;
        close_comm(&players[i].comm);
    }
    pthread_barrier_destroy(&together);
    printf("%s %d %.3f %.3f\n", kind->name, threads, callback_ns, limit_ns);
}

static void run_kinds(const struct nccl *nccl, struct player *players)
{
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        run_round(nccl, players, &kinds[i], 1);
        run_round(nccl, players, &kinds[i], MOST_THREADS);
    }
}

/* LOCKSTEP_RING_DIR says where; the rest is set here, so that everything is recorded and nothing lowered. */
int main(int argc, char **argv)
{
    static struct player players[MOST_THREADS];

    if (argc != 3) {
        fprintf(stderr, "usage: %s PATH_OF_THE_PLUGIN ROUNDS\n", argv[0]);
        return 2;
    }
    plugin_path = argv[1];
    setenv("LOCKSTEP_SAMPLE", "0.5", 1);
    setenv("LOCKSTEP_BUDGET", "0", 1);
    setenv("LOCKSTEP_KERNEL", "on", 1);
    const struct nccl nccl = load_plugin(NEWEST_VERSION);
    for (int i = 0; i < MOST_THREADS; i++) {
        players[i].limit.ring = aligned_alloc(sizeof(struct slot), WIRE_RING_RECORDS * sizeof(struct slot));
        CHECK(players[i].limit.ring != NULL);
        memset(players[i].limit.ring, 1, WIRE_RING_RECORDS * sizeof(struct slot));
    }
    for (int round = 0; round < atoi(argv[2]); round++)
        run_kinds(&nccl, players);
    CHECK(is_asked_for(ABI_PROXY_STEP) && is_asked_for(ABI_KERNEL_CHANNEL)); /* it was not silent */
    return EXIT_SUCCESS;
}
