/* Connections as NCCL makes them: the receiver listens on a port that the kernel chose, the sender connects from the NIC
 * of the channel. Where ranks listen they tell each other by files in the folder of the job. */
#define _GNU_SOURCE

#include "worker.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#ifndef IP_BIND_ADDRESS_NO_PORT
#define IP_BIND_ADDRESS_NO_PORT 24
#endif

enum { BACKLOG = 512, LOOK_AGAIN_MS = 5 };

/* What a sender says first. */
struct greeting {
    uint64_t comm_id;
    int32_t rank, channel, is_p2p; /* rank: of the sender in the communicator */
};

static int listeners[MOST_NICS + 1]; /* the last one is for ranks of the same host */
static uint64_t deadline_ns;

static uint64_t monotonic_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * UINT64_C(1000000000) + (uint64_t)now.tv_nsec;
}

static int checked(int result, const char *what)
{
    if (result < 0)
        fail(FAILED, "%s: %s", what, strerror(errno));
    return result;
}

static void set(int fd, int level, int name, int value, const char *what)
{
    checked(setsockopt(fd, level, name, &value, sizeof value), what);
}

/* Small and of one size, so that a slow link shows: else the kernel takes megabytes before anybody waits. What receives
 * has more, because a window that closes looks like trouble on the wire. */
static int open_socket(int family)
{
    const int fd = checked(socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0), "no socket");
    const int64_t left_ns = (int64_t)(deadline_ns - monotonic_ns());
    const struct timeval limit = {.tv_sec = left_ns > 0 ? (time_t)(left_ns / 1000000000 + 1) : 1};

    set(fd, SOL_SOCKET, SO_SNDBUF, job.buffer_bytes, "the size of a send buffer");
    set(fd, SOL_SOCKET, SO_RCVBUF, 4 * job.buffer_bytes, "the size of a receive buffer");
    checked(setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit), "a limit for sending"); /* and connecting */
    checked(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit), "a limit for receiving");
    if (family == AF_INET)
        set(fd, IPPROTO_TCP, TCP_NODELAY, 1, "no delay");
    return fd;
}

static struct sockaddr_in tcp_address(const char *address, int port)
{
    struct sockaddr_in found = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};

    if (inet_pton(AF_INET, address, &found.sin_addr) != 1)
        fail(BAD_USAGE, "%s is no IPv4 address", address);
    return found;
}

/* Relative to the folder of the job: a whole path may be too long for an address. */
static struct sockaddr_un local_address(int of_rank)
{
    struct sockaddr_un found = {.sun_family = AF_UNIX};

    snprintf(found.sun_path, sizeof found.sun_path, "rank%d.sock", of_rank);
    return found;
}

static void listen_everywhere(void)
{
    const struct sockaddr_un own = local_address(job.rank);

    for (int nic = 0; nic < job.nnics; nic++) {
        const struct sockaddr_in address = tcp_address(job.nics[nic].address, 0);

        listeners[nic] = open_socket(AF_INET);
        checked(bind(listeners[nic], (const void *)&address, sizeof address), job.nics[nic].address);
        checked(listen(listeners[nic], BACKLOG), "nothing can be listened to");
    }
    listeners[job.nnics] = open_socket(AF_UNIX);
    unlink(own.sun_path);
    checked(bind(listeners[job.nnics], (const void *)&own, sizeof own), own.sun_path);
    checked(listen(listeners[job.nnics], BACKLOG), own.sun_path);
}

static int port_of(int fd, bool of_peer)
{
    struct sockaddr_in address = {0};
    socklen_t bytes = sizeof address;

    checked((of_peer ? getpeername : getsockname)(fd, (void *)&address, &bytes), "a socket without an address");
    return ntohs(address.sin_port);
}

/* Whole or not at all: others wait for the name. */
static void tell_where(void)
{
    char name[NAME_BYTES], finished[NAME_BYTES];

    snprintf(name, sizeof name, "rank%d.listens.new", job.rank);
    snprintf(finished, sizeof finished, "rank%d.listens", job.rank);
    FILE *file = fopen(name, "w");
    if (file == NULL)
        fail(FAILED, "%s cannot be written", name);
    for (int nic = 0; nic < job.nnics; nic++)
        fprintf(file, "%s %d\n", job.nics[nic].address, port_of(listeners[nic], false));
    if (fclose(file) != 0 || rename(name, finished) != 0)
        fail(FAILED, "%s cannot be written", finished);
}

static FILE *wait_for_words_of(int world)
{
    const struct timespec pause = {.tv_nsec = LOOK_AGAIN_MS * 1000000};
    char name[NAME_BYTES];
    FILE *file;

    snprintf(name, sizeof name, "rank%d.listens", world);
    while ((file = fopen(name, "r")) == NULL) {
        if (monotonic_ns() > deadline_ns)
            fail(TOO_LATE, "rank %d has not come", world);
        nanosleep(&pause, NULL);
    }
    return file;
}

static struct sockaddr_in find_listener(int world, int nic)
{
    FILE *file = wait_for_words_of(world);
    char address[NAME_BYTES] = "";
    int port = 0;

    for (int i = 0; i <= nic; i++)
        if (fscanf(file, "%63s %d", address, &port) != 2)
            fail(FAILED, "rank %d has no NIC %d", world, nic);
    fclose(file);
    return tcp_address(address, port);
}

static int told_port(const struct connection *connection)
{
    for (int i = 0; i < job.nports; i++) {
        const struct told_port *port = &job.ports[i];

        if (!connection->is_p2p && port->comm == connection->comm && port->channel == connection->channel
            && port->peer == connection->peer)
            return port->port;
    }
    return 0;
}

static void connect_over_network(struct connection *connection, int world)
{
    const int nic = nic_of(connection->channel), port = told_port(connection);
    const struct sockaddr_in to = find_listener(world, nic), from = tcp_address(job.nics[nic].address, port);

    connection->fd = open_socket(AF_INET);
    set(connection->fd, SOL_SOCKET, SO_REUSEADDR, 1, "a port again"); /* told ports come again with the next attempt */
    if (port == 0)
        set(connection->fd, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, 1, "a port that is chosen late");
    if (bind(connection->fd, (const void *)&from, sizeof from) < 0)
        fail(FAILED, "source port %d of %s cannot be had: %s", port, job.nics[nic].address, strerror(errno));
    if (connect(connection->fd, (const void *)&to, sizeof to) < 0)
        fail(FAILED, "no connection from %s to rank %d: %s", job.nics[nic].address, world, strerror(errno));
}

static void connect_inside(struct connection *connection, int world)
{
    const struct sockaddr_un to = local_address(world);

    fclose(wait_for_words_of(world));
    connection->fd = open_socket(AF_UNIX);
    if (connect(connection->fd, (const void *)&to, sizeof to) < 0)
        fail(FAILED, "no connection to rank %d on this host: %s", world, strerror(errno));
}

static void make_connection(struct connection *connection)
{
    const struct told_comm *comm = &job.comms[connection->comm];
    const struct greeting hello = {comm->id, comm->rank, connection->channel, connection->is_p2p};

    (connection->is_local ? connect_inside : connect_over_network)(connection, comm->world[connection->peer]);
    if (send(connection->fd, &hello, sizeof hello, MSG_NOSIGNAL) != sizeof hello)
        fail(FAILED, "nothing can be sent to rank %d", comm->world[connection->peer]);
}

static void take_connection(int listener)
{
    const int fd = checked(accept4(listener, NULL, NULL, SOCK_CLOEXEC), "a connection that cannot be taken");
    struct greeting hello;

    if (recv(fd, &hello, sizeof hello, MSG_WAITALL) != sizeof hello) { /* a stranger, or a rank that died at once */
        close(fd);
        return;
    }
    for (int comm = 0; comm < job.ncomms; comm++) {
        struct connection *expected = find_connection(comm, hello.channel, hello.is_p2p, hello.rank, false);

        if (job.comms[comm].id == hello.comm_id && expected != NULL && expected->fd < 0) {
            expected->fd = fd;
            return;
        }
    }
    fail(FAILED, "rank %d of communicator 0x%" PRIx64 " sends on channel %d, and nobody here expects it", hello.rank,
         hello.comm_id, hello.channel);
}

static bool is_one_missing(void)
{
    for (int i = 0; i < nconnections; i++)
        if (connections[i].fd < 0)
            return true;
    return false;
}

static void take_all(void)
{
    struct pollfd sockets[MOST_NICS + 1];

    for (int i = 0; i <= job.nnics; i++)
        sockets[i] = (struct pollfd){.fd = listeners[i], .events = POLLIN};
    while (is_one_missing()) {
        if (poll(sockets, (nfds_t)job.nnics + 1, 100) < 0 || monotonic_ns() > deadline_ns)
            fail(TOO_LATE, "not all who send to this rank have connected");
        for (int i = 0; i <= job.nnics; i++)
            if (sockets[i].revents & POLLIN)
                take_connection(listeners[i]);
    }
    for (int i = 0; i <= job.nnics; i++)
        close(listeners[i]);
}

static void show_connection(const struct connection *connection)
{
    const struct told_comm *comm = &job.comms[connection->comm];

    checked(fcntl(connection->fd, F_SETFL, O_NONBLOCK), "a socket that always waits");
    if (connection->sends && !connection->is_local)
        printf("connection %" PRIx64 " %d %d %d %s %d %d\n", comm->id, connection->channel, comm->rank, connection->peer,
               job.nics[nic_of(connection->channel)].name, port_of(connection->fd, false), port_of(connection->fd, true));
}

void connect_all(int limit_s)
{
    deadline_ns = monotonic_ns() + (uint64_t)limit_s * UINT64_C(1000000000);
    listen_everywhere();
    tell_where();
    for (int i = 0; i < nconnections; i++)
        if (connections[i].sends)
            make_connection(&connections[i]);
    take_all();
    for (int i = 0; i < nconnections; i++)
        show_connection(&connections[i]);
}
