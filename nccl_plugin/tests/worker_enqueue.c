/* What a step enqueues: each operation is told to the plugin, posted to the proxy, and put on the stream, in that order
 * and without waiting for any of it. */
#include "worker.h"

#include <stdlib.h>
#include <string.h>

static uint64_t chance;   /* state of the random numbers, which rank and step determine */
static bool is_slow_step; /* compute takes longer in this one */

/* --- chance --- */

static double uniform(void)
{
    uint64_t mixed = (chance += UINT64_C(0x9E3779B97F4A7C15));

    mixed = (mixed ^ mixed >> 30) * UINT64_C(0xBF58476D1CE4E5B9);
    mixed = (mixed ^ mixed >> 27) * UINT64_C(0x94D049BB133111EB);
    return (double)((mixed ^ mixed >> 31) >> 11) / (double)(UINT64_C(1) << 53);
}

/* Twelve uniform numbers have a variance of one, and their sum is as good as normal. */
static double normal(void)
{
    double sum = -6;

    for (int i = 0; i < 12; i++)
        sum += uniform();
    return sum;
}

/* --- enqueueing --- */

static struct transfer *new_transfer(struct operation *operation, const struct program *program, int channel, int peer,
                                     bool sends)
{
    const struct told_item *item = operation->item;
    struct transfer *transfer = calloc(1, sizeof *transfer);

    if (transfer == NULL)
        fail(FAILED, "no memory for a transfer");
    transfer->operation = operation;
    transfer->connection = find_connection(item->comm, channel, is_send_or_recv(item), peer, sends);
    transfer->nsteps = steps_of(program);
    transfer->step_bytes = program->step_bytes;
    operation->parts++;
    return transfer;
}

static void add_programs(struct operation *operation, const struct told_item *sized, int channel)
{
    struct program programs[MOST_PROGRAMS];
    const int count = plan_programs(sized, channel, programs), on = channel_of(sized, channel);

    for (int p = 0; p < count; p++) {
        struct running_program *program = &operation->programs[operation->nprograms++];

        *program = (struct running_program){.program = programs[p]};
        for (int i = 0; i < programs[p].nreceives; i++)
            program->receives[i] = new_transfer(operation, &programs[p], on, programs[p].receives[i], false);
        for (int i = 0; i < programs[p].nsends; i++)
            program->sends[i] = new_transfer(operation, &programs[p], on, programs[p].sends[i], true);
    }
}

/* NCCL numbers collectives per communicator and function. */
static uint64_t next_number(const struct told_item *item)
{
    static struct {
        const char *func; /* one of the names in worker_job.c, so that its address tells it */
        uint64_t next;
    } numbers[MOST_COMMS][8];

    for (int i = 0; i < 8; i++) {
        if (numbers[item->comm][i].func == NULL)
            numbers[item->comm][i].func = item->func;
        if (numbers[item->comm][i].func == item->func)
            return numbers[item->comm][i].next++;
    }
    fail(FAILED, "more functions than there are");
}

static void *tell_plugin(const struct told_item *sized)
{
    const struct comm *comm = &comms[sized->comm];
    const bool in_bytes = strcmp(sized->func, "AllGather") == 0 || strcmp(sized->func, "Broadcast") == 0;

    if (is_send_or_recv(sized))
        return enqueue_p2p(comm, strcmp(sized->func, "Send") == 0, sized->peer, sized->bytes / 2); /* of two bytes each */
    return enqueue_collective(comm, &(struct event){.func = sized->func, .seq = next_number(sized),
                                                    .count = in_bytes ? sized->bytes : sized->bytes / 4,
                                                    .dtype = in_bytes ? "ncclInt8" : "ncclFloat32", .algo = sized->algo,
                                                    .proto = "SIMPLE", .channels = sized->channels});
}

static struct operation *new_operation(const struct told_item *item)
{
    struct operation *operation = calloc(1, sizeof *operation);
    struct told_item sized = *item;
    const long times = atomic_exchange(&faults.mismatch, 0);

    if (times > 0)
        sized.bytes *= (uint64_t)times;
    if (operation != NULL)
        operation->programs = calloc((size_t)item->channels * MOST_PROGRAMS, sizeof *operation->programs);
    if (operation == NULL || operation->programs == NULL)
        fail(FAILED, "no memory for an operation");
    operation->item = item;
    operation->comm = &comms[item->comm];
    operation->parts = 1; /* the kernel */
    operation->handle = tell_plugin(&sized);
    for (int channel = 0; channel < item->channels; channel++)
        add_programs(operation, &sized, channel);
    return operation;
}

static void push(struct kernel *kernel)
{
    const bool has_operations = kernel->noperations > 0; /* the stream may be done with it once it is handed over */

    pthread_mutex_lock(&rank.lock);
    for (int i = 0; i < kernel->noperations; i++) {
        struct operation *operation = kernel->operations[i];

        if (rank.last_posted == NULL)
            rank.posted = operation;
        else
            rank.last_posted->next_posted = operation;
        rank.last_posted = operation;
        rank.open_operations++;
    }
    if (rank.last == NULL)
        rank.first = kernel;
    else
        rank.last->next = kernel;
    rank.last = kernel;
    rank.enqueued++;
    pthread_cond_broadcast(&rank.changed);
    pthread_mutex_unlock(&rank.lock);
    if (has_operations)
        wake_proxy();
}

static void enqueue_compute(const struct told_item *item)
{
    struct kernel *kernel = calloc(1, sizeof *kernel);
    const double slowness = is_slow_step ? (double)atomic_load(&faults.slow_permil) / 1000 : 1;
    const double ns = item->ms * 1e6 * slowness * (1 + item->noise * normal());

    if (kernel == NULL)
        fail(FAILED, "no memory for compute");
    kernel->compute_ns = ns > 0 ? ns : 0;
    kernel->spins = item->spins;
    push(kernel);
}

static void enqueue_group(const struct told_item *items, int count)
{
    struct kernel *kernel = calloc(1, sizeof *kernel);

    if (kernel != NULL)
        kernel->operations = calloc((size_t)count, sizeof *kernel->operations);
    if (kernel == NULL || kernel->operations == NULL)
        fail(FAILED, "no memory for a kernel");
    for (int i = 0; i < count; i++)
        if (job.comms[items[i].comm].nranks > 1) /* alone there is nothing to do, and NCCL tells nothing */
            kernel->operations[kernel->noperations++] = new_operation(&items[i]);
    push(kernel);
}

/* One item, or those that are in one group with it. */
static void enqueue(const struct told_mix *mix, int first)
{
    int count = 1;

    while (first + count < mix->nitems && mix->items[first + count].joined)
        count++;
    if (mix->items[first].is_compute)
        enqueue_compute(&mix->items[first]);
    else
        enqueue_group(&mix->items[first], count);
}

void enqueue_step(uint64_t step)
{
    const struct told_mix *mix = &job.mixes[step >= (uint64_t)atomic_load(&faults.second_from)];
    const bool is_reversed = atomic_load(&faults.reversed);

    chance = (job.seed * UINT64_C(1000003) + (uint64_t)job.rank) * UINT64_C(1000003) + step;
    is_slow_step = uniform() * 1000 < (double)atomic_load(&faults.slow_share);
    for (int i = 0; i < mix->nitems; i++) {
        const int place = is_reversed ? mix->nitems - 1 - i : i;

        if (!mix->items[place].joined)
            enqueue(mix, place);
    }
}
