/* The GPU: a stream on which compute and kernels follow one another, and the programs of the kernel that runs.
 *
 * The host enqueues without waiting, as with CUDA; a kernel begins when what stands before it on the stream is over. Its
 * programs cost next to nothing and are carried out by the proxy's thread, which knows when data has come. */
#define _GNU_SOURCE

#include "worker.h"

#include <errno.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

uint64_t unix_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_REALTIME, &now);
    return (uint64_t)now.tv_sec * UINT64_C(1000000000) + (uint64_t)now.tv_nsec;
}

void wake_proxy(void)
{
    const uint64_t one = 1;

    if (write(rank.wake_fd, &one, sizeof one) < 0 && errno != EAGAIN)
        fail(FAILED, "the proxy cannot be woken");
}

void part_ends(struct operation *operation)
{
    if (atomic_fetch_sub(&operation->parts, 1) != 1)
        return;
    pthread_mutex_lock(&rank.lock);
    rank.open_operations--;
    pthread_cond_broadcast(&rank.changed);
    pthread_mutex_unlock(&rank.lock);
    free(operation->programs);
    free(operation);
}

/* --- programs --- */

static bool receives_now(const struct running_program *program)
{
    return program->program.period == 1 || program->round % (uint64_t)program->program.period != 0;
}

static bool sends_now(const struct running_program *program)
{
    const uint64_t period = (uint64_t)program->program.period;

    return period == 1 || program->round % period != period - 1;
}

/* What has come, and what has room. A transfer whose turn has not come has posted nothing. */
static bool can_go_on(const struct running_program *program)
{
    if (program->round == program->program.rounds)
        return false;
    for (int i = 0; receives_now(program) && i < program->program.nreceives; i++)
        if (program->receives[i]->consumed == program->receives[i]->transmitted)
            return false;
    for (int i = 0; sends_now(program) && i < program->program.nsends; i++)
        if (program->sends[i]->filled == program->sends[i]->posted)
            return false;
    return true;
}

static void run_round(struct running_program *program)
{
    for (int i = 0; receives_now(program) && i < program->program.nreceives; i++)
        program->receives[i]->consumed++;
    for (int i = 0; sends_now(program) && i < program->program.nsends; i++)
        program->sends[i]->filled++;
    program->round++;
}

bool run_programs(struct kernel *kernel)
{
    bool has_moved = false;

    if (atomic_load(&faults.stuck))
        return false;
    for (int i = 0; i < kernel->noperations; i++) {
        struct operation *operation = kernel->operations[i];

        for (int p = 0; p < operation->nprograms; p++)
            for (; can_go_on(&operation->programs[p]); has_moved = true)
                run_round(&operation->programs[p]);
    }
    return has_moved;
}

bool has_ended(const struct kernel *kernel)
{
    for (int i = 0; i < kernel->noperations; i++)
        for (int p = 0; p < kernel->operations[i]->nprograms; p++)
            if (kernel->operations[i]->programs[p].round < kernel->operations[i]->programs[p].program.rounds)
                return false;
    return true;
}

/* --- the stream --- */

static void compute(double ns, bool spins)
{
    const uint64_t end_ns = unix_ns() + (uint64_t)ns;
    const struct timespec pause = {.tv_sec = (time_t)(ns / 1e9), .tv_nsec = (long)(ns - (double)(time_t)(ns / 1e9) * 1e9)};

    if (!spins)
        nanosleep(&pause, NULL);
    while (spins && unix_ns() < end_ns)
        ;
}

static void begin_channels(struct operation *operation)
{
    for (int channel = 0; channel < operation->item->channels; channel++)
        if (operation->handle != NULL && is_asked_for(ABI_KERNEL_CHANNEL))
            operation->kernels[channel] =
                start(operation->comm, &(struct event){.type = ABI_KERNEL_CHANNEL, .parent = operation->handle,
                                                       .channel = channel_of(operation->item, channel),
                                                       .gpu_ns = unix_ns()});
}

static void end_channels(struct operation *operation)
{
    for (int channel = 0; channel < operation->item->channels; channel++)
        if (operation->kernels[channel] != NULL) {
            record(operation->comm, operation->kernels[channel], ABI_KERNEL_STOP, unix_ns());
            stop(operation->comm, operation->kernels[channel]);
        }
}

/* Returns with the lock; the kernel is over, or the rank leaves. */
static void wait_for_end(struct kernel *kernel)
{
    pthread_mutex_lock(&rank.lock);
    rank.running = kernel;
    wake_proxy();
    while (rank.running == kernel && !rank.is_leaving)
        pthread_cond_wait(&rank.changed, &rank.lock);
}

static void run_operations(struct kernel *kernel)
{
    for (int i = 0; i < kernel->noperations; i++)
        begin_channels(kernel->operations[i]);
    wait_for_end(kernel);
    const bool is_over = rank.running != kernel;
    pthread_mutex_unlock(&rank.lock);
    if (!is_over)
        return; /* the process is about to end, and the proxy may still look at it */
    for (int i = 0; i < kernel->noperations; i++) {
        end_channels(kernel->operations[i]);
        part_ends(kernel->operations[i]);
    }
}

static struct kernel *next_kernel(void)
{
    pthread_mutex_lock(&rank.lock);
    while (rank.first == NULL && !rank.is_leaving)
        pthread_cond_wait(&rank.changed, &rank.lock);
    struct kernel *kernel = rank.is_leaving ? NULL : rank.first;
    if (kernel != NULL && (rank.first = kernel->next) == NULL)
        rank.last = NULL;
    pthread_mutex_unlock(&rank.lock);
    return kernel;
}

void *run_stream(void *unused)
{
    for (struct kernel *kernel; (kernel = next_kernel()) != NULL;) {
        if (kernel->noperations == 0)
            compute(kernel->compute_ns, kernel->spins);
        else
            run_operations(kernel);
        pthread_mutex_lock(&rank.lock);
        rank.finished++;
        pthread_cond_broadcast(&rank.changed);
        const bool is_leaving = rank.is_leaving;
        pthread_mutex_unlock(&rank.lock);
        if (is_leaving)
            break;
        free(kernel->operations);
        free(kernel);
    }
    return unused;
}
