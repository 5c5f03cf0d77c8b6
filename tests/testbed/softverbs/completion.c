/* Completion queues and the channels that announce them. A program that polls drives the stand-in while it does, and on
 * a machine of few cores sleeps for moments when there is nothing for long: spinning programs starve those they wait
 * for there. With cores to spare it would only be slower to see what else it looks at. */
#include "softverbs.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

enum { IDLE_POLLS = 64, NAP_US = 100, FEW_CORES = 8 };

struct soft_channel {
    struct ibv_comp_channel channel;
    int write_end;
};

struct soft_cq {
    struct ibv_cq cq;
    struct ibv_wc *ring;
    uint32_t size, head, tail;
    bool is_armed;
};

static void announce(struct soft_cq *queue)
{
    struct ibv_cq *told = &queue->cq;
    struct soft_channel *channel = (struct soft_channel *)queue->cq.channel;
    if (!queue->is_armed || channel == NULL)
        return;
    queue->is_armed = false;
    if (write(channel->write_end, &told, sizeof told) < 0)
        queue->is_armed = true; /* the pipe is full of events that nobody has read: the program is awake */
}

void soft_complete(struct ibv_cq *told, const struct ibv_wc *completion)
{
    struct soft_cq *queue = (struct soft_cq *)told;
    if (queue->tail - queue->head == queue->size) {
        soft_raise((struct soft_context *)told->context, IBV_EVENT_CQ_ERR, told);
        return;
    }
    queue->ring[queue->tail++ % queue->size] = *completion;
    announce(queue);
}

static int take(struct soft_cq *queue, int most, struct ibv_wc *completions)
{
    int taken = 0;
    while (taken < most && queue->head != queue->tail)
        completions[taken++] = queue->ring[queue->head++ % queue->size];
    return taken;
}

static bool has_few_cores(void)
{
    static _Atomic long cores;
    if (cores == 0)
        cores = sysconf(_SC_NPROCESSORS_ONLN);
    return cores < FEW_CORES;
}

int soft_poll_cq(struct ibv_cq *told, int most, struct ibv_wc *completions)
{
    static _Thread_local unsigned idle;
    struct soft_cq *queue = (struct soft_cq *)told;
    pthread_mutex_lock(&soft_lock);
    int taken = take(queue, most, completions);
    if (taken == 0) {
        soft_work();
        taken = take(queue, most, completions);
    }
    pthread_mutex_unlock(&soft_lock);
    idle = taken ? 0 : idle + 1;
    if (idle > IDLE_POLLS && has_few_cores())
        soft_nap(NAP_US);
    return taken;
}

int soft_req_notify_cq(struct ibv_cq *told, int solicited_only)
{
    (void)solicited_only;
    pthread_mutex_lock(&soft_lock);
    ((struct soft_cq *)told)->is_armed = true;
    pthread_mutex_unlock(&soft_lock);
    return 0;
}

SOFT_EXPORT struct ibv_cq *ibv_create_cq(struct ibv_context *context, int entries, void *cq_context,
                                         struct ibv_comp_channel *channel, int vector)
{
    (void)vector;
    struct soft_cq *made = calloc(1, sizeof *made);
    struct ibv_wc *ring = entries > 0 ? calloc((size_t)entries, sizeof *ring) : NULL;
    if (made == NULL || ring == NULL) {
        free(made);
        free(ring);
        errno = entries > 0 ? ENOMEM : EINVAL;
        return NULL;
    }
    made->cq = (struct ibv_cq){.context = context, .channel = channel, .cq_context = cq_context, .cqe = entries};
    made->ring = ring;
    made->size = (uint32_t)entries;
    return &made->cq;
}

SOFT_EXPORT int ibv_destroy_cq(struct ibv_cq *cq)
{
    pthread_mutex_lock(&soft_lock); /* wait for whoever completes something on it */
    free(((struct soft_cq *)cq)->ring);
    pthread_mutex_unlock(&soft_lock);
    free(cq);
    return 0;
}

SOFT_EXPORT struct ibv_comp_channel *ibv_create_comp_channel(struct ibv_context *context)
{
    struct soft_channel *made = calloc(1, sizeof *made);
    int ends[2];
    if (made == NULL || pipe(ends)) {
        free(made);
        return NULL;
    }
    fcntl(ends[0], F_SETFD, FD_CLOEXEC);
    fcntl(ends[1], F_SETFD, FD_CLOEXEC);
    fcntl(ends[1], F_SETFL, O_NONBLOCK);
    made->channel.context = context;
    made->channel.fd = ends[0];
    made->write_end = ends[1];
    return &made->channel;
}

SOFT_EXPORT int ibv_destroy_comp_channel(struct ibv_comp_channel *channel)
{
    close(channel->fd);
    close(((struct soft_channel *)channel)->write_end);
    free(channel);
    return 0;
}

SOFT_EXPORT int ibv_get_cq_event(struct ibv_comp_channel *channel, struct ibv_cq **queue, void **cq_context)
{
    if (read(channel->fd, queue, sizeof *queue) != sizeof *queue)
        return -1;
    *cq_context = (*queue)->cq_context;
    return 0;
}

SOFT_EXPORT void ibv_ack_cq_events(struct ibv_cq *queue, unsigned events)
{
    (void)queue, (void)events;
}
