/* What turns a process into a NIC: the sockets, the thread that receives and keeps time, and source ports. */
#define _GNU_SOURCE
#include "softverbs.h"
#include "wire.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum {
    BATCH = 32,
    PACKET_BYTES = SOFT_HEADER_BYTES + SOFT_PAYLOAD_BYTES + SOFT_ICRC_BYTES,
    BUFFER_BYTES = 32 << 20, /* of a socket: many windows, and the kernel counts a packet twice */
    TICK_MS = 10,
    SLOW_TICKS = 10, /* links are looked at and counters written every so many ticks */
};

static int wakeups = -1;
static struct soft_source *sources;

uint64_t soft_now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static int open_socket(struct in_addr address, uint16_t port)
{
    struct sockaddr_in here = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr = address};
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), bytes = BUFFER_BYTES;
    if (fd < 0)
        return -1;
    if (setsockopt(fd, SOL_SOCKET, SO_RCVBUFFORCE, &bytes, sizeof bytes)) /* needs root */
        setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &bytes, sizeof bytes);
    if (setsockopt(fd, SOL_SOCKET, SO_SNDBUFFORCE, &bytes, sizeof bytes))
        setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof bytes);
    if (bind(fd, (struct sockaddr *)&here, sizeof here) == 0)
        return fd;
    int problem = errno;
    close(fd);
    errno = problem;
    return -1;
}

bool soft_listen(struct soft_device *device)
{
    struct epoll_event readable = {.events = EPOLLIN};
    if (device->listener >= 0)
        return true;
    device->listener = open_socket(device->address, SOFT_ROCE_PORT);
    if (device->listener < 0) {
        fprintf(stderr, "softverbs: UDP port %d of %s: %s; one process a namespace can have it\n", SOFT_ROCE_PORT,
                device->interface, strerror(errno));
        return false;
    }
    epoll_ctl(wakeups, EPOLL_CTL_ADD, device->listener, &readable);
    return true;
}

static struct soft_source *find_source(struct in_addr address, uint16_t port)
{
    struct soft_source *found = sources;
    while (found && (found->wanted != port || found->address.s_addr != address.s_addr))
        found = found->next;
    return found;
}

struct soft_source *soft_take_source(struct soft_device *device, uint16_t port)
{
    struct soft_source *source = find_source(device->address, port);
    if (source == NULL && (source = calloc(1, sizeof *source)) != NULL) {
        source->address = device->address;
        source->wanted = port;
        source->fd = open_socket(device->address, port);
        if (source->fd < 0) { /* a NIC has its ports for itself, we share them with the kernel */
            fprintf(stderr, "softverbs: source port %u of %s is taken, another is used\n", port, device->interface);
            source->fd = open_socket(device->address, 0);
        }
        source->next = sources;
        sources = source;
    }
    if (source)
        source->users++;
    return source;
}

void soft_drop_source(struct soft_source *source)
{
    if (source == NULL || --source->users)
        return;
    struct soft_source **at = &sources;
    while (*at != source)
        at = &(*at)->next;
    *at = source->next;
    if (source->fd >= 0)
        close(source->fd);
    free(source);
}

bool soft_put(struct soft_qp *qp, const uint8_t *bytes, size_t length)
{
    struct soft_counters *counters = &qp->device->counters;
    ssize_t sent = sendto(qp->source->fd, bytes, length, MSG_DONTWAIT | MSG_NOSIGNAL,
                          (const struct sockaddr *)&qp->peer, sizeof qp->peer);
    if (sent < 0 && (errno == EAGAIN || errno == EINTR))
        return false;
    if (sent < 0) { /* no link or no way: lost, like a packet on a dead cable */
        counters->discards++;
        return true;
    }
    counters->tx_packets++;
    counters->tx_bytes += length;
    return true;
}

static void take_packet(struct soft_device *device, const uint8_t *bytes, size_t length)
{
    struct soft_packet packet;
    device->counters.rx_packets++;
    device->counters.rx_bytes += length;
    struct soft_qp *qp = soft_decode(bytes, length, &packet) ? soft_qp_of(packet.destination) : NULL;
    if (qp == NULL || qp->device != device || qp->source == NULL)
        return; /* a NIC passes over what is for nobody, too */
    if (packet.opcode == SOFT_ACKNOWLEDGE)
        soft_take_answer(qp, &packet);
    else
        soft_take_request(qp, &packet);
}

static void drain(struct soft_device *device)
{
    static uint8_t bytes[BATCH][PACKET_BYTES];
    struct iovec places[BATCH];
    struct mmsghdr messages[BATCH];
    memset(messages, 0, sizeof messages);
    for (int i = 0; i < BATCH; i++) {
        places[i] = (struct iovec){bytes[i], PACKET_BYTES};
        messages[i].msg_hdr = (struct msghdr){.msg_iov = &places[i], .msg_iovlen = 1};
    }
    int got = recvmmsg(device->listener, messages, BATCH, MSG_DONTWAIT, NULL);
    for (int i = 0; i < got; i++)
        take_packet(device, bytes[i], messages[i].msg_len);
}

static void receive_packets(void)
{
    int count;
    struct soft_device *devices = soft_devices(&count);
    for (int i = 0; i < count; i++)
        if (devices[i].listener >= 0)
            drain(&devices[i]);
}

static void tick(void)
{
    uint64_t now_ns = soft_now_ns();
    for (uint32_t number = SOFT_FIRST_QPN; number < SOFT_QUEUE_PAIRS; number++) {
        struct soft_qp *qp = soft_qp_of(number);
        if (qp && qp->source)
            soft_tick(qp, now_ns);
    }
}

static void look_after_devices(void)
{
    int count;
    struct soft_device *devices = soft_devices(&count);
    soft_watch_links();
    for (int i = 0; i < count; i++)
        if (devices[i].listener >= 0)
            soft_write_counters(&devices[i]);
}

void soft_work(void)
{
    static uint64_t ticked_ns;
    static unsigned ticks;
    receive_packets();
    if (soft_now_ns() - ticked_ns < TICK_MS * 1000000u)
        return;
    tick();
    if (++ticks % SLOW_TICKS == 0)
        look_after_devices();
    ticked_ns = soft_now_ns();
}

void soft_nap(unsigned most_us)
{
    struct timespec most = {.tv_nsec = most_us * 1000L};
    struct pollfd waiting = {.fd = wakeups, .events = POLLIN};
    ppoll(&waiting, 1, &most, NULL);
}

static void *run(void *unused)
{
    struct epoll_event ready[SOFT_DEVICES];
    (void)unused;
    for (;;) {
        epoll_wait(wakeups, ready, SOFT_DEVICES, TICK_MS);
        pthread_mutex_lock(&soft_lock);
        soft_work();
        pthread_mutex_unlock(&soft_lock);
    }
    return NULL;
}

bool soft_start(void)
{
    pthread_t thread;
    if (wakeups >= 0)
        return true;
    wakeups = epoll_create1(EPOLL_CLOEXEC);
    if (wakeups < 0 || pthread_create(&thread, NULL, run, NULL))
        return false;
    pthread_setname_np(thread, "softverbs");
    pthread_detach(thread);
    return true;
}
