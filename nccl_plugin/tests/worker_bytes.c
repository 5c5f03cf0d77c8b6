/* The bytes of steps on their way through a socket, each after a few that say how many follow; and what becomes of the
 * rank when the other side has gone. */
#define _GNU_SOURCE

#include "worker.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>

enum {
    GRACE_MS = 300, /* a job is told to leave rank by rank: a peer that goes a little earlier has not failed */
    WAKE_BYTES = 16384,
};

static char *buffer; /* what is in it does not matter */

void make_buffer(void)
{
    buffer = calloc(1, job.chunk_bytes);
    if (buffer == NULL)
        fail(FAILED, "no memory for a buffer");
}

/* Where the job is told to end a peer may have gone a little earlier; else this rank fails as NCCL's jobs do. */
static void lose_peer(struct connection *connection, int error)
{
    const int world = job.comms[connection->comm].world[connection->peer];
    struct timespec limit;

    connection->is_closed = true;
    clock_gettime(CLOCK_REALTIME, &limit);
    limit.tv_nsec += GRACE_MS * 1000000;
    limit.tv_sec += limit.tv_nsec / 1000000000;
    limit.tv_nsec %= 1000000000;
    pthread_mutex_lock(&rank.lock);
    while (!rank.is_leaving && pthread_cond_timedwait(&rank.changed, &rank.lock, &limit) == 0)
        ;
    const bool is_over = rank.is_leaving;
    pthread_mutex_unlock(&rank.lock);
    if (is_over)
        return;
    log_closed(connection);
    fail(FAILED, "rank %d is gone (%s, channel %d): %s", world, job.comms[connection->comm].name, connection->channel,
         error == 0 ? "connection closed by remote peer" : strerror(error));
}

/* Take the result of a call that moves bytes; returns whether it moved any. */
static bool count_moved(struct connection *connection, ssize_t moved)
{
    if (moved > 0) {
        connection->moved_bytes += (size_t)moved;
        return true;
    }
    if (moved < 0 && errno == EINTR)
        return true;
    connection->is_ready = false;
    if (moved == 0 || (errno != EAGAIN && errno != EWOULDBLOCK))
        lose_peer(connection, moved == 0 ? 0 : errno);
    return false;
}

bool has_moved_all(const struct connection *connection)
{
    return connection->moved_bytes >= sizeof connection->message
           && connection->moved_bytes == sizeof connection->message + connection->message.bytes;
}

/* Hand the oldest step on to the kernel, as far as that takes it; returns whether something moved. */
bool push_bytes(struct connection *connection, const struct transfer *transfer)
{
    const size_t head = sizeof connection->message, step_bytes = transfer->step_bytes;

    connection->message = (struct message){.number = transfer->number, .bytes = step_bytes};
    if (connection->moved_bytes < head) {
        const char *from = (const char *)&connection->message + connection->moved_bytes;

        return count_moved(connection,
                           send(connection->fd, from, head - connection->moved_bytes, MSG_NOSIGNAL | MSG_MORE));
    }
    const size_t sent = connection->moved_bytes - head;
    return count_moved(connection, send(connection->fd, buffer + sent, step_bytes - sent, MSG_NOSIGNAL));
}

/* Be woken when so much is there, and not for every packet: on a shaped link they come one by one. */
static void expect_bytes(struct connection *connection, size_t left)
{
    const int bytes = (int)(left < WAKE_BYTES ? left : WAKE_BYTES);

    if (connection->is_ready || connection->is_local || connection->is_closed || connection->wake_bytes == bytes)
        return;
    connection->wake_bytes = bytes;
    if (setsockopt(connection->fd, SOL_SOCKET, SO_RCVLOWAT, &bytes, sizeof bytes) != 0)
        fail(FAILED, "SO_RCVLOWAT: %s", strerror(errno));
}

static bool take(struct connection *connection, void *to, size_t left, int flags)
{
    const bool has_moved = count_moved(connection, recv(connection->fd, to, left, flags));

    if (!has_moved)
        expect_bytes(connection, left);
    return has_moved;
}

/* Data that came over TCP is thrown away by the kernel, which saves the copy. What belongs to another operation than the
 * one that is expected is left where it is: NCCL's jobs hang when their ranks disagree on sizes by much. */
bool pull_bytes(struct connection *connection, const struct transfer *transfer)
{
    const size_t head = sizeof connection->message;

    if (connection->moved_bytes < head) {
        char *to = (char *)&connection->message + connection->moved_bytes;

        return take(connection, to, head - connection->moved_bytes, 0);
    }
    connection->is_out_of_step = connection->message.number != transfer->number;
    if (connection->is_out_of_step)
        return false;
    if (connection->message.bytes > job.chunk_bytes)
        fail(FAILED, "message truncated : receiving %zu bytes instead of %zu", (size_t)connection->message.bytes,
             job.chunk_bytes);
    const size_t left = connection->message.bytes - (connection->moved_bytes - head);
    return take(connection, buffer, left, connection->is_local ? 0 : MSG_TRUNC);
}
