/* Which connections a rank needs for all that its steps do, and which of them is meant. */
#define _GNU_SOURCE

#include "worker.h"

#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

struct connection *connections;
int nconnections;

int nic_of(int channel)
{
    return channel % job.nnics;
}

struct connection *find_connection(int comm, int channel, bool is_p2p, int peer, bool sends)
{
    for (int i = 0; i < nconnections; i++) {
        struct connection *each = &connections[i];

        if (each->comm == comm && each->channel == channel && each->is_p2p == is_p2p && each->peer == peer
            && each->sends == sends)
            return each;
    }
    return NULL;
}

static void need_connection(const struct told_item *item, int channel, int peer, bool sends)
{
    const struct told_comm *comm = &job.comms[item->comm];

    if (find_connection(item->comm, channel, is_send_or_recv(item), peer, sends) != NULL)
        return;
    connections = realloc(connections, (size_t)(nconnections + 1) * sizeof *connections);
    if (connections == NULL)
        fail(FAILED, "no memory for connections");
    connections[nconnections++] = (struct connection){
        .comm = item->comm, .channel = channel, .peer = peer, .is_p2p = is_send_or_recv(item), .sends = sends, .fd = -1,
        .is_local = strcmp(job.hosts[job.rank], job.hosts[comm->world[peer]]) == 0, .is_ready = true};
}

static void need_connections(const struct told_item *item, int channel)
{
    struct program programs[MOST_PROGRAMS];
    const int count = job.comms[item->comm].nranks > 1 ? plan_programs(item, channel, programs) : 0;

    for (int p = 0; p < count; p++) {
        for (int i = 0; i < programs[p].nreceives; i++)
            need_connection(item, channel_of(item, channel), programs[p].receives[i], false);
        for (int i = 0; i < programs[p].nsends; i++)
            need_connection(item, channel_of(item, channel), programs[p].sends[i], true);
    }
}

void plan_connections(void)
{
    for (int m = 0; m < job.nmixes; m++)
        for (int i = 0; i < job.mixes[m].nitems; i++) {
            const struct told_item *item = &job.mixes[m].items[i];

            for (int channel = 0; !item->is_compute && channel < item->channels; channel++)
                need_connections(item, channel);
        }
}

int pace_channel(int channel, uint64_t bytes_per_s)
{
    int paced = 0;

    for (int i = 0; i < nconnections; i++) {
        const struct connection *each = &connections[i];
        const uint64_t rate = bytes_per_s == 0 ? UINT64_MAX : bytes_per_s;

        if (each->sends && !each->is_local && each->channel == channel)
            paced += setsockopt(each->fd, SOL_SOCKET, SO_MAX_PACING_RATE, &rate, sizeof rate) == 0;
    }
    return paced;
}
