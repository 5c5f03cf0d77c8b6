/* Operations of other kinds: send and receive, CUDA graphs, kernels, and transfers made for another process. */
#define _POSIX_C_SOURCE 200809L

#include "harness.h"
#include "scenarios.h"

#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static struct comm open_replayed(struct nccl *nccl, int version)
{
    *nccl = load_plugin(version);
    use_replay_clock(nccl);
    now_ns = 100;
    return open_comm(nccl, COMM_ID, 2, 4);
}

/* --- send and receive --- */

static void run_p2p(const struct comm *comm, bool send, int peer, uint64_t at_ns)
{
    now_ns = at_ns;
    void *operation = enqueue_p2p(comm, send, peer, 8);
    now_ns = at_ns + 10;
    void *transfer = begin_transfer(comm, operation, peer, 0, 1, send);
    now_ns = at_ns + 20;
    stop(comm, transfer);
}

static void check_p2p(const struct ringfile *file, unsigned number, unsigned func, int peer, uint64_t seq)
{
    const struct wire_record *record = find_record(file, WIRE_ENQUEUED, number);

    EQUAL(record->enqueued.func, func);
    EQUAL(record->enqueued.peer, peer);
    EQUAL(record->enqueued.seq, seq);
    EQUAL(record->enqueued.bytes, 16);
    EQUAL(record->enqueued.dtype, WIRE_FLOAT16);
    EQUAL(record->enqueued.root, -1);
    CHECK(record->flags & WIRE_FLAG_SEQ_VALID);
}

/* NCCL does not number them: the plugin counts per function and peer. */
static void play_send_recv(int version)
{
    struct nccl nccl;
    const struct comm comm = open_replayed(&nccl, version);

    run_p2p(&comm, true, 3, 1000);
    run_p2p(&comm, true, 1, 2000);
    run_p2p(&comm, false, 3, 3000);
    run_p2p(&comm, true, 3, 4000);
    struct ringfile file = read_own_file();
    check_file(&file);
    EQUAL(count_records(&file, WIRE_ENQUEUED), 4);
    check_p2p(&file, 0, WIRE_SEND, 3, 0);
    check_p2p(&file, 1, WIRE_SEND, 1, 0);
    check_p2p(&file, 2, WIRE_RECV, 3, 0);
    check_p2p(&file, 3, WIRE_SEND, 3, 1);
    EQUAL(count_records(&file, WIRE_TRANSFER_CLOSED), 4);
    const struct wire_row *row = find_row(&file, COMM_ID, WIRE_SEND, 3);
    EQUAL(row->enqueued, 2);
    EQUAL(row->started, 2);
    EQUAL(row->done, 2);
    EQUAL(row->started_ticks, 4010);
    EQUAL(row->done_ticks, 4020);
    EQUAL(find_row(&file, COMM_ID, WIRE_RECV, 3)->done, 1);
    close_file(&file);
}

/* --- CUDA graphs --- */

struct graph {
    struct comm comm;
    void *api, *last;
};

/* CUDA's own thread tells of the operation at every launch of the graph, with the API call of the capture. */
static void launch_graph(void *argument)
{
    struct graph *graph = argument;
    const struct event coll = {.type = ABI_COLL, .parent = graph->api, .func = "AllReduce", .seq = 5, .count = 16,
                               .dtype = "ncclInt32", .algo = "TREE", .proto = "LL", .channels = 1};

    graph->last = start(&graph->comm, &coll);
    stop(&graph->comm, graph->last);
}

static void play_graph(int version)
{
    enum { LAUNCHES = 4 };
    struct nccl nccl;
    struct graph graph = {.api = NULL};
    struct worker *callback_thread = hire();

    setenv("LOCKSTEP_KERNEL", "off", 1);
    graph.comm = open_replayed(&nccl, version);
    for (uint64_t seq = 0; seq < 5; seq++)
        run_all_reduce(&graph.comm, seq);
    graph.api = start(&graph.comm, &(struct event){.type = ABI_COLL_API, .func = "AllReduce", .captured = true,
                                                   .dtype = "ncclInt32", .count = 16});
    CHECK(graph.api != NULL);
    stop(&graph.comm, graph.api);
    for (int launch = 0; launch < LAUNCHES; launch++) {
        now_ns = 5000 + 100 * (uint64_t)launch;
        work(callback_thread, launch_graph, &graph);
        stop(&graph.comm, begin_transfer(&graph.comm, graph.last, 1, 0, 1, true));
    }
    struct ringfile file = read_own_file();
    check_file(&file);
    EQUAL(count_records(&file, WIRE_ENQUEUED), 5 + LAUNCHES);
    for (uint32_t launch = 0; launch < LAUNCHES; launch++) {
        const struct wire_record *record = find_record(&file, WIRE_ENQUEUED, 5 + launch);

        EQUAL(record->flags & (WIRE_FLAG_CAPTURED | WIRE_FLAG_SEQ_VALID), WIRE_FLAG_CAPTURED);
        EQUAL(record->enqueued.seq, 5);
        EQUAL(record->enqueued.replay, launch + 1);
        EQUAL(record->enqueued.ticks, 5000 + 100 * launch);
    }
    EQUAL(find_row(&file, COMM_ID, WIRE_ALL_REDUCE, -1)->replay, LAUNCHES);
    EQUAL(find_row(&file, COMM_ID, WIRE_ALL_REDUCE, -1)->done, 5); /* what cannot be compared does not count as progress */
    close_file(&file);
    dismiss(callback_thread);
}

/* --- kernels --- */

struct launched {
    struct comm comm;
    void *operation;
};

static void tell_kernels(void *argument)
{
    const struct launched *ours = argument;

    for (int channel = 0; channel < 2; channel++) {
        now_ns = 3000 + 10 * (uint64_t)channel;
        run_kernel_channel(&ours->comm, ours->operation, channel, UNIX_AT_ZERO_NS + 1500, UNIX_AT_ZERO_NS + 2500);
    }
}

static void play_kernels(int version)
{
    struct nccl nccl;
    struct worker *profiler_thread = hire();

    setenv("LOCKSTEP_KERNEL", "on", 1);
    struct launched ours = {.comm = open_replayed(&nccl, version)};
    CHECK(is_asked_for(ABI_KERNEL_CHANNEL));
    now_ns = 1000;
    ours.operation = enqueue_all_reduce(&ours.comm, 0);
    work(profiler_thread, tell_kernels, &ours);
    struct ringfile file = read_own_file();
    check_file(&file);
    EQUAL(header_of(&file)->kernel_channels, 1);
    EQUAL(count_records(&file, WIRE_KERNEL_CLOSED), 2);
    for (unsigned channel = 0; channel < 2; channel++) {
        const struct wire_record *record = find_record(&file, WIRE_KERNEL_CLOSED, channel);

        EQUAL(record->kernel.operation, (uintptr_t)ours.operation);
        EQUAL(record->kernel.channel, channel);
        EQUAL(record->kernel.start_ticks, 3000 + 10 * channel);
        EQUAL(record->kernel.stop_ticks, 3000 + 10 * channel);
        EQUAL(record->kernel.gpu_start_ns, UNIX_AT_ZERO_NS + 1500);
        EQUAL(record->kernel.gpu_stop_ns, UNIX_AT_ZERO_NS + 2500);
    }
    EQUAL(find_row(&file, COMM_ID, WIRE_ALL_REDUCE, -1)->started, 1);
    EQUAL(find_row(&file, COMM_ID, WIRE_ALL_REDUCE, -1)->done, 1);
    EQUAL(operation_of(&file, ours.operation)->began, 2);
    EQUAL(count_open_transfers(&file), 0);
    close_file(&file);
    dismiss(profiler_thread);
}

/* From 2.26 to 2.30 a send to oneself shifts the kernel times of that communicator for good. */
static void play_self_send(int version)
{
    struct nccl nccl;
    const struct comm comm = open_replayed(&nccl, version), other = open_comm(&nccl, COMM_ID + 1, 2, 4);

    enqueue_p2p(&comm, true, 2, 8);
    enqueue_p2p(&other, true, 3, 8);
    struct ringfile file = read_own_file();
    EQUAL(comm_at(&file, place_of_comm(&file, COMM_ID))->kernel_untrusted, version < NEWEST_VERSION);
    EQUAL(comm_at(&file, place_of_comm(&file, COMM_ID + 1))->kernel_untrusted, 0);
    close_file(&file);
}

/* --- PXN: this process moves another one's data through its NIC --- */

/* What another process of the same job holds: its context and the handle of its operation. */
struct foreign {
    void *context, *operation;
    int pid;
};

static struct foreign ask_other_process(int version)
{
    struct foreign foreign;
    int pipe_ends[2], status;

    CHECK(pipe(pipe_ends) == 0);
    const pid_t child = fork();
    if (child == 0) {
        struct nccl nccl;
        const struct comm comm = open_replayed(&nccl, version);

        foreign = (struct foreign){comm.context, enqueue_all_reduce(&comm, 0), (int)getpid()};
        _exit(write(pipe_ends[1], &foreign, sizeof foreign) == sizeof foreign ? 0 : 1);
    }
    CHECK(child > 0 && read(pipe_ends[0], &foreign, sizeof foreign) == sizeof foreign);
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    CHECK(foreign.operation != NULL && foreign.pid == child);
    return foreign;
}

static void play_pxn(int version)
{
    const struct foreign foreign = ask_other_process(version);
    struct nccl nccl;
    struct comm comm = open_replayed(&nccl, version);

    enqueue_all_reduce(&comm, 0);
    comm.context = foreign.context;
    now_ns = 1000;
    void *transfer = start(&comm, &(struct event){.type = ABI_PROXY_OP, .parent = foreign.operation, .pid = foreign.pid,
                                                  .channel = 1, .peer = 3, .steps = 1, .chunk = 512, .send = 1});
    CHECK(transfer != NULL);
    run_send_step(&comm, transfer, 0, 512);
    now_ns = 1300;
    stop(&comm, transfer);
    struct ringfile file = read_own_file();
    check_file(&file);
    EQUAL(status_of(&file)->foreign, 1);
    EQUAL(count_records(&file, WIRE_TRANSFER_CLOSED), 1);
    const struct wire_record *record = find_record(&file, WIRE_TRANSFER_CLOSED, 0);
    EQUAL(record->comm, WIRE_NO_COMM);
    EQUAL(record->transfer.pid, foreign.pid);
    EQUAL(record->transfer.operation, (uintptr_t)foreign.operation);
    EQUAL(record->transfer.peer, 3);
    EQUAL(duration_of(record->transfer.duration), 300);
    EQUAL(find_row(&file, COMM_ID, WIRE_ALL_REDUCE, -1)->started, 0);
    close_file(&file);
}

const struct scenario kind_scenarios[] = {
    {"send and receive", play_send_recv, NEWEST_VERSION, OLDEST_VERSION},
    {"a CUDA graph is replayed", play_graph, NEWEST_VERSION, 5},
    {"kernel channels", play_kernels, NEWEST_VERSION, 4},
    {"a send to oneself", play_self_send, NEWEST_VERSION, 5},
    {"PXN", play_pxn, NEWEST_VERSION, 4},
    {NULL, NULL, 0, 0},
};
