/* Who sends what to whom in an operation: rings, trees, chains, and single sends, cut into steps as NCCL cuts them. */
#include "worker.h"

#include <string.h>

static uint64_t divided_up(uint64_t amount, uint64_t part)
{
    const uint64_t parts = (amount + part - 1) / part;

    return parts > 0 ? parts : 1;
}

static void cut(struct program *program, uint64_t bytes, uint64_t pieces_a_loop)
{
    const uint64_t loops = divided_up(bytes, pieces_a_loop * job.chunk_bytes);

    program->rounds = loops * (uint64_t)program->period;
    program->step_bytes = divided_up(bytes, loops * pieces_a_loop);
}

/* Every rank sends to the next and receives from the one before. The first round has nothing to receive yet, the last
 * nothing to send any more. */
static int plan_ring(const struct told_item *item, struct program *program)
{
    const struct told_comm *comm = &job.comms[item->comm];
    const int n = comm->nranks;
    const bool twice = strcmp(item->func, "AllReduce") == 0; /* around to reduce, and around again to spread */

    *program = (struct program){.receives = {(comm->rank + n - 1) % n}, .sends = {(comm->rank + 1) % n},
                                .nreceives = 1, .nsends = 1, .period = twice ? 2 * n - 1 : n};
    cut(program, divided_up(item->bytes, (uint64_t)item->channels), twice ? (uint64_t)n : 1);
    return 1;
}

/* From rank 0 on, each to the next. */
static int plan_chain(const struct told_item *item, struct program *program)
{
    const struct told_comm *comm = &job.comms[item->comm];

    *program = (struct program){.receives = {comm->rank - 1}, .sends = {comm->rank + 1}, .nreceives = comm->rank > 0,
                                .nsends = comm->rank < comm->nranks - 1, .period = 1};
    cut(program, divided_up(item->bytes, (uint64_t)item->channels), 1);
    return 1;
}

struct tree {
    int parent, children[MOST_PEERS], nchildren;
};

/* A binary tree in which the numbers of a subtree lie together: a rank's children are as far from it as half of its
 * lowest bit, or less where there is nobody. Rank 0 stands alone above the top. */
static struct tree find_place(int place, int n)
{
    struct tree tree = {.parent = -1};
    int reach = 1;

    if (place == 0) {
        while (reach * 2 < n)
            reach *= 2;
        tree.children[tree.nchildren++] = reach;
        return tree;
    }
    const int lowest = place & -place;
    tree.parent = (place ^ lowest) | lowest << 1;
    if (tree.parent >= n)
        tree.parent = place ^ lowest;
    if (lowest > 1)
        tree.children[tree.nchildren++] = place - lowest / 2;
    for (reach = lowest / 2; reach > 0 && place + reach >= n;)
        reach /= 2;
    if (reach > 0)
        tree.children[tree.nchildren++] = place + reach;
    return tree;
}

/* Odd channels use the mirrored tree, so that whoever only receives in one has children in the other. */
static struct tree find_tree(const struct told_comm *comm, int channel)
{
    const int last = comm->nranks - 1;
    const bool mirrored = channel % 2 == 1;
    struct tree tree = find_place(mirrored ? last - comm->rank : comm->rank, comm->nranks);

    if (!mirrored)
        return tree;
    tree.parent = tree.parent < 0 ? -1 : last - tree.parent;
    for (int i = 0; i < tree.nchildren; i++)
        tree.children[i] = last - tree.children[i];
    return tree;
}

static int plan_tree(const struct told_item *item, int channel, struct program programs[MOST_PROGRAMS])
{
    const struct tree tree = find_tree(&job.comms[item->comm], channel);
    struct program up = {.nreceives = tree.nchildren, .nsends = 1, .sends = {tree.parent}, .period = 1};
    struct program down = {.receives = {tree.parent}, .nreceives = 1, .nsends = tree.nchildren, .period = 1};

    cut(&up, divided_up(item->bytes, (uint64_t)item->channels), 1);
    down.rounds = up.rounds;
    down.step_bytes = up.step_bytes;
    memcpy(up.receives, tree.children, sizeof up.receives);
    memcpy(down.sends, tree.children, sizeof down.sends);
    if (tree.parent < 0) { /* what comes up goes down again at once */
        up.nsends = tree.nchildren;
        memcpy(up.sends, tree.children, sizeof up.sends);
        programs[0] = up;
        return 1;
    }
    programs[0] = up;
    programs[1] = down;
    return 2;
}

static int plan_p2p(const struct told_item *item, struct program *program)
{
    const bool sends = strcmp(item->func, "Send") == 0;

    *program = (struct program){.receives = {item->peer}, .sends = {item->peer}, .nreceives = !sends, .nsends = sends,
                                .period = 1};
    cut(program, divided_up(item->bytes, (uint64_t)item->channels), 1);
    return 1;
}

int plan_programs(const struct told_item *item, int channel, struct program programs[MOST_PROGRAMS])
{
    if (is_send_or_recv(item))
        return plan_p2p(item, programs);
    if (strcmp(item->func, "Broadcast") == 0)
        return plan_chain(item, programs);
    if (strcmp(item->algo, "TREE") == 0)
        return plan_tree(item, channel, programs);
    return plan_ring(item, programs);
}

uint64_t steps_of(const struct program *program)
{
    const uint64_t period = (uint64_t)program->period;

    return period == 1 ? program->rounds : program->rounds / period * (period - 1);
}

/* Sends to different peers begin at different channels, so that they use all NICs; both ends must agree. */
int channel_of(const struct told_item *item, int channel)
{
    if (!is_send_or_recv(item))
        return channel;
    return (job.comms[item->comm].rank + item->peer) / 2 % job.nnics + channel;
}
