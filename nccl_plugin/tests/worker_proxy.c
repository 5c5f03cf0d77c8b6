/* The proxy's thread: moves the data of all connections, and tells of every transfer and step what it waits for, when it
 * does. The order of the states is that of NCCL's net transport over sockets. */
#define _GNU_SOURCE

#include "worker.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static struct kernel *running;

/* --- transfers and their steps --- */

static void begin_transfer_of(struct transfer *transfer)
{
    const struct connection *connection = transfer->connection;
    struct operation *operation = transfer->operation;

    if (operation->handle == NULL || connection->is_local
        || !is_asked_for(ABI_PROXY_OP | ABI_PROXY_STEP | ABI_NET_PLUGIN))
        return;
    transfer->handle = start(operation->comm, &(struct event){.type = ABI_PROXY_OP, .parent = operation->handle,
                                                              .pid = (int)getpid(), .channel = connection->channel,
                                                              .peer = connection->peer, .steps = (int)transfer->nsteps,
                                                              .chunk = (int)transfer->step_bytes,
                                                              .send = connection->sends});
}

static void pass(struct transfer *transfer, uint64_t step, int state, uint64_t bytes)
{
    pass_state(transfer->operation->comm, transfer->handle, transfer->steps[step % STEPS_AHEAD], state, bytes);
}

/* Returns whether there were any: the GPU may wait for one. */
static bool post_steps(struct transfer *transfer)
{
    const struct comm *comm = transfer->operation->comm;
    const uint64_t before = transfer->posted;

    if (!transfer->is_in_progress && transfer->handle != NULL)
        record(comm, transfer->handle, ABI_OP_IN_PROGRESS, 0);
    transfer->is_in_progress = true;
    for (; transfer->posted < transfer->nsteps && transfer->posted < transfer->done + STEPS_AHEAD; transfer->posted++) {
        transfer->steps[transfer->posted % STEPS_AHEAD] = begin_step(comm, transfer->handle, (int)transfer->posted);
        pass(transfer, transfer->posted, transfer->connection->sends ? ABI_SEND_GPU_WAIT : ABI_RECV_WAIT, 0);
    }
    return transfer->posted > before;
}

static void end_step(struct transfer *transfer)
{
    void *step = transfer->steps[transfer->done++ % STEPS_AHEAD];

    if (step != NULL)
        stop(transfer->operation->comm, step);
}

static void end_transfer(struct connection *connection)
{
    struct transfer *transfer = connection->first;

    if (transfer->handle != NULL)
        stop(transfer->operation->comm, transfer->handle);
    connection->first = transfer->next;
    if (connection->first == NULL)
        connection->last = NULL;
    part_ends(transfer->operation);
    free(transfer);
}

/* --- progress --- */

static bool progress_send(struct connection *connection, struct transfer *transfer)
{
    bool has_moved = false;

    for (; transfer->transmitted < transfer->filled; transfer->transmitted++) {
        pass(transfer, transfer->transmitted, ABI_SEND_PEER_WAIT, 0); /* a socket refuses nothing */
        pass(transfer, transfer->transmitted, ABI_SEND_WAIT, transfer->step_bytes);
    }
    while (connection->is_ready && transfer->done < transfer->transmitted && push_bytes(connection, transfer)) {
        has_moved = true;
        if (has_moved_all(connection)) {
            connection->moved_bytes = 0;
            end_step(transfer);
        }
    }
    return has_moved;
}

static bool progress_receive(struct connection *connection, struct transfer *transfer)
{
    bool has_moved = false;

    for (; transfer->transmitted < transfer->received; transfer->transmitted++, has_moved = true)
        pass(transfer, transfer->transmitted, ABI_RECV_GPU_WAIT, transfer->step_bytes);
    for (; transfer->done < transfer->consumed; has_moved = true)
        end_step(transfer);
    while (connection->is_ready && transfer->received < transfer->posted && pull_bytes(connection, transfer)) {
        has_moved = true;
        if (has_moved_all(connection)) {
            pass(transfer, transfer->received++, ABI_RECV_FLUSH_WAIT, connection->message.bytes);
            connection->moved_bytes = 0;
        }
    }
    return has_moved;
}

static bool progress(struct connection *connection)
{
    struct transfer *transfer = connection->first;

    if (transfer == NULL || connection->is_closed)
        return false;
    const bool has_posted = post_steps(transfer);
    const bool has_moved = (connection->sends ? progress_send : progress_receive)(connection, transfer);
    if (transfer->done < transfer->nsteps)
        return has_posted || has_moved;
    end_transfer(connection);
    return true;
}

/* --- what is new --- */

/* NCCL tells of a transfer when the proxy takes it over, which may be long before it is its turn. */
static void append(struct operation *operation)
{
    for (int p = 0; p < operation->nprograms; p++) {
        struct running_program *program = &operation->programs[p];

        for (int side = 0; side < 2; side++) {
            struct transfer **transfers = side == 0 ? program->receives : program->sends;
            const int count = side == 0 ? program->program.nreceives : program->program.nsends;

            for (int i = 0; i < count; i++) {
                struct connection *connection = transfers[i]->connection;

                transfers[i]->number = connection->appended++;
                begin_transfer_of(transfers[i]);
                if (connection->last == NULL)
                    connection->first = transfers[i];
                else
                    connection->last->next = transfers[i];
                connection->last = transfers[i];
            }
        }
    }
}

/* Returns whether the proxy goes on. */
static bool take_news(void)
{
    pthread_mutex_lock(&rank.lock);
    struct operation *news = rank.posted;
    const bool goes_on = !rank.is_leaving;
    rank.posted = rank.last_posted = NULL;
    running = rank.running;
    pthread_mutex_unlock(&rank.lock);
    while (news != NULL) {
        struct operation *next = news->next_posted; /* before it can end */

        append(news);
        news = next;
    }
    return goes_on;
}

static bool run_kernel(void)
{
    if (running == NULL || has_ended(running))
        return false;
    const bool has_moved = run_programs(running);
    if (has_ended(running)) {
        pthread_mutex_lock(&rank.lock);
        rank.running = NULL; /* the stream sees it and goes on */
        pthread_cond_broadcast(&rank.changed);
        pthread_mutex_unlock(&rank.lock);
        running = NULL;
    }
    return has_moved;
}

static short events_of(const struct connection *connection)
{
    const struct transfer *transfer = connection->first;

    if (transfer == NULL || connection->is_closed || connection->is_ready || connection->is_out_of_step)
        return 0;
    if (connection->sends)
        return transfer->done < transfer->transmitted ? POLLOUT : 0;
    return transfer->received < transfer->posted ? POLLIN : 0;
}

static void wait_for_news(struct pollfd *sockets)
{
    uint64_t woken;

    sockets[nconnections] = (struct pollfd){.fd = rank.wake_fd, .events = POLLIN};
    for (int i = 0; i < nconnections; i++) {
        const short events = events_of(&connections[i]);

        sockets[i] = (struct pollfd){.fd = events == 0 ? -1 : connections[i].fd, .events = events};
    }
    if (poll(sockets, (nfds_t)nconnections + 1, -1) < 0 && errno != EINTR)
        fail(FAILED, "sockets cannot be waited for: %s", strerror(errno));
    for (int i = 0; i < nconnections; i++)
        if (sockets[i].revents != 0)
            connections[i].is_ready = true;
    if (sockets[nconnections].revents != 0 && read(rank.wake_fd, &woken, sizeof woken) < 0 && errno != EAGAIN)
        fail(FAILED, "the proxy cannot be woken: %s", strerror(errno));
}

void *run_proxy(void *unused)
{
    struct pollfd *sockets = calloc((size_t)nconnections + 1, sizeof *sockets);

    if (sockets == NULL)
        fail(FAILED, "no memory for the proxy");
    make_buffer();
    while (take_news()) {
        bool has_moved = run_kernel();

        for (int i = 0; i < nconnections; i++)
            has_moved |= progress(&connections[i]);
        if (!has_moved)
            wait_for_news(sockets);
    }
    free(sockets);
    return unused;
}
