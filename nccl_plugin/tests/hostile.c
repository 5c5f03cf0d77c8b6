/* Arguments that NCCL should not give, and partly does: none at all, odd names, odd numbers. */
#define _POSIX_C_SOURCE 200809L

#include "harness.h"
#include "scenarios.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const unsigned all_types[] = {
    ABI_GROUP,      ABI_COLL,      ABI_P2P,      ABI_PROXY_OP,      ABI_PROXY_STEP, ABI_PROXY_CTRL,
    ABI_NET_PLUGIN, ABI_GROUP_API, ABI_COLL_API, ABI_P2P_API,       ABI_CE_COLL,    ABI_KERNEL_CHANNEL,
    ABI_CE_SYNC,    ABI_CE_BATCH,  ABI_KERNEL_LAUNCH, ABI_KERNEL_PHASE,
};

static void check_nothing_was_recorded(void)
{
    struct ringfile file = read_own_file();

    check_file(&file);
    EQUAL(sum_of_heads(&file), 0);
    EQUAL(count_open_transfers(&file), 0);
    close_file(&file);
}

/* --- arguments that are not there --- */

static void init_without(const struct lockstep_profiler *table, int version, void **context, int *mask)
{
    int result;

    if (version < 4)
        result = table->init.v1(context, mask);
    else if (version == 4)
        result = table->init.v4(context, mask, NULL, 0, 0, 0, 0, NULL);
    else
        result = table->init.v5(context, 0, mask, NULL, 0, 0, 0, NULL);
    EQUAL(result, LOCKSTEP_SUCCESS);
}

static void play_null_arguments(int version)
{
    const struct nccl nccl = load_plugin(version);
    const struct lockstep_profiler *table = nccl.table;
    void *context = NULL, *handle = &context;

    init_without(table, version, NULL, NULL);
    init_without(table, version, NULL, &nccl_mask);
    init_without(table, version, &context, NULL);
    EQUAL(table->start(NULL, &handle, NULL), LOCKSTEP_SUCCESS);
    CHECK(handle == NULL); /* NCCL reads it, so it is written whatever comes */
    handle = &context;
    EQUAL(table->start(context, &handle, NULL), LOCKSTEP_SUCCESS);
    CHECK(handle == NULL);
    EQUAL(table->start(context, NULL, NULL), LOCKSTEP_SUCCESS);
    EQUAL(table->stop(NULL), LOCKSTEP_SUCCESS);
    for (int state = -1; state < 40; state++)
        EQUAL(table->record(NULL, state, NULL), LOCKSTEP_SUCCESS);
    EQUAL(table->finalize(NULL), LOCKSTEP_SUCCESS);
    check_nothing_was_recorded();
}

static void start_without_handle(const struct comm *comm, unsigned type)
{
    unsigned char *descriptor = malloc(descriptor_bytes(comm->nccl->version));

    CHECK(descriptor != NULL);
    write_descriptor(comm->nccl->version, descriptor, comm, &(struct event){.type = type, .func = "AllReduce"});
    EQUAL(comm->nccl->table->start(comm->context, NULL, descriptor), LOCKSTEP_SUCCESS);
    free(descriptor);
}

/* Names that are missing, long or unknown, and no place for the handle. */
static void play_odd_names(int version)
{
    static const char *const names[] = {NULL, "", "AllReduce", "AllReduceAllReduceAllReduceAllReduceAllReduce", "\xff"};
    const struct nccl nccl = load_plugin(version);
    const struct comm comm = open_comm(&nccl, COMM_ID, 0, 2);
    unsigned enqueued = 0;

    for (size_t i = 0; i < sizeof names / sizeof *names; i++, enqueued++) {
        struct event coll = {.func = names[i], .dtype = names[i], .algo = names[i], .proto = names[i], .seq = i,
                             .count = UINT64_MAX, .channels = 255};
        CHECK(enqueue_collective(&comm, &coll) != NULL);
    }
    for (size_t i = 0; i < sizeof all_types / sizeof *all_types; i++)
        start_without_handle(&comm, all_types[i]);
    struct ringfile file = read_own_file();
    check_file(&file);
    CHECK(count_records(&file, WIRE_ENQUEUED) >= enqueued);
    EQUAL(find_record(&file, WIRE_ENQUEUED, 0)->enqueued.func, version == 1 ? 0 : WIRE_FUNC_UNKNOWN);
    close_file(&file);
}

/* --- numbers --- */

static void play_odd_numbers(int version)
{
    static const int odd[] = {-1, 0, 7, 8, 255, 256, 65536, 0x7fffffff, (int)0x80000000};
    const struct nccl nccl = load_plugin(version);
    const struct comm comm = open_comm(&nccl, COMM_ID, 0, 2);
    void *operation = enqueue_all_reduce(&comm, UINT64_MAX - 1);

    for (size_t i = 0; i < sizeof odd / sizeof *odd; i++) {
        void *transfer = start(&comm, &(struct event){.type = ABI_PROXY_OP, .parent = operation, .pid = odd[i],
                                                      .channel = odd[i], .peer = odd[i], .steps = odd[i],
                                                      .chunk = odd[i], .send = odd[i]});
        for (size_t j = 0; j < sizeof odd / sizeof *odd; j++) {
            void *step = begin_step(&comm, transfer, odd[j]);

            pass_state(&comm, transfer, step, ABI_SEND_GPU_WAIT, UINT64_MAX);
            pass_state(&comm, transfer, step, ABI_RECV_GPU_WAIT, UINT64_MAX);
            if (step != NULL)
                stop(&comm, step);
        }
        stop(&comm, transfer);
        enqueue_p2p(&comm, true, odd[i], UINT64_MAX);
    }
    for (unsigned bit = 16; bit < 64; bit++) /* kinds that no version has yet */
        CHECK(version < 5 || start(&comm, &(struct event){.type = UINT64_C(1) << bit, .parent = operation}) == NULL);
    struct ringfile file = read_own_file();
    check_file(&file);
    EQUAL(count_open_transfers(&file), 0);
    EQUAL(count_records(&file, WIRE_TRANSFER_CLOSED), sizeof odd / sizeof *odd);
    close_file(&file);
}

const struct scenario hostile_scenarios[] = {
    {"arguments are missing", play_null_arguments, NEWEST_VERSION, OLDEST_VERSION},
    {"odd names", play_odd_names, NEWEST_VERSION, OLDEST_VERSION},
    {"odd numbers", play_odd_numbers, NEWEST_VERSION, OLDEST_VERSION},
    {NULL, NULL, 0, 0},
};
