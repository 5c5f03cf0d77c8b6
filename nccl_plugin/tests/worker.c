/* One rank of a job that really sends: the application's thread, which enqueues step by step.
 *
 * usage: worker PATH_OF_THE_PLUGIN FOLDER RANK --limit-s SECONDS
 * FOLDER has the rank's job file, rankN.job (worker_job.c), and is where ranks meet. Control lines (worker_control.c)
 * come from the pipe rankN.control, and what the rank says goes to rankN.out and rankN.err; where there is no such pipe
 * the standard streams are used. It says
 *   connection COMM CHANNEL RANK PEER NIC SOURCE_PORT PORT     for each connection over the network that sends
 *   ready
 *   step NUMBER BEGIN_NS END_NS                                for each step; UNIX time
 *   done                                                       after the last one
 * and leaves when its control lines end. It exits with 0 then, with 1 when a peer vanished, and with 3 when a step takes
 * longer than the limit.
 */
#define _GNU_SOURCE

#include "worker.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

struct rank rank = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};
struct comm comms[MOST_COMMS];

static int limit_s;

/* --- steps --- */

static struct timespec time_limit(void)
{
    struct timespec limit;

    clock_gettime(CLOCK_REALTIME, &limit);
    limit.tv_sec += limit_s;
    return limit;
}

/* Wait until all kernels are over, at the end also all transfers; returns whether the rank goes on. */
static bool synchronize(uint64_t step, bool with_transfers)
{
    const struct timespec limit = time_limit();

    pthread_mutex_lock(&rank.lock);
    while (!rank.is_leaving && (rank.finished < rank.enqueued || (with_transfers && rank.open_operations > 0)))
        if (pthread_cond_timedwait(&rank.changed, &rank.lock, &limit) == ETIMEDOUT)
            fail(TOO_LATE, "step %" PRIu64 " is not done within %d s", step, limit_s);
    const bool goes_on = !rank.is_leaving;
    pthread_mutex_unlock(&rank.lock);
    return goes_on;
}

/* Until the rank is told to leave; after the last step for as long as that takes. */
static void wait_to_leave(bool is_bounded)
{
    const struct timespec limit = time_limit();

    pthread_mutex_lock(&rank.lock);
    while (!rank.is_leaving)
        if (!is_bounded)
            pthread_cond_wait(&rank.changed, &rank.lock);
        else if (pthread_cond_timedwait(&rank.changed, &rank.lock, &limit) == ETIMEDOUT)
            fail(TOO_LATE, "absent for %d s", limit_s);
    pthread_mutex_unlock(&rank.lock);
}

static bool run_step(uint64_t step)
{
    const uint64_t begin_ns = unix_ns();
    const long late_ns = atomic_load(&faults.late_ns) + atomic_exchange(&faults.pause_ns, 0);
    const struct timespec late = {.tv_sec = late_ns / 1000000000, .tv_nsec = late_ns % 1000000000};

    nanosleep(&late, NULL);
    enqueue_step(step);
    if (!synchronize(step, false))
        return false;
    printf("step %" PRIu64 " %" PRIu64 " %" PRIu64 "\n", step, begin_ns, unix_ns());
    return true;
}

static void run_steps(void)
{
    for (uint64_t step = 0; job.steps == 0 || step < job.steps; step++) {
        if (atomic_load(&faults.absent))
            return wait_to_leave(true);
        if (!run_step(step))
            return;
    }
    if (synchronize(job.steps, true)) {
        puts("done");
        wait_to_leave(false);
    }
}

/* --- the beginning and the end --- */

static void open_comms(const struct nccl *nccl)
{
    log_network();
    for (int i = 0; i < job.ncomms; i++) {
        const struct told_comm *told = &job.comms[i];
        struct comm *comm = &comms[i];

        *comm = (struct comm){.nccl = nccl, .id = told->id, .rank = told->rank, .nranks = told->nranks};
        log_comm(i, "Init START");
        EQUAL(nccl->table->init.v5(&comm->context, told->id, &nccl_mask, told->name, told->nnodes, told->nranks,
                                   told->rank, nccl_log), LOCKSTEP_SUCCESS);
        log_connections(i);
        log_comm(i, "Init COMPLETE");
    }
}

/* Returns where control lines come from. */
static FILE *take_streams(int number)
{
    char name[NAME_BYTES];
    FILE *control = stdin;

    snprintf(name, sizeof name, "rank%d.control", number);
    if (access(name, F_OK) == 0) {
        control = fopen(name, "re");
        snprintf(name, sizeof name, "rank%d.out", number);
        FILE *out = freopen(name, "w", stdout);
        snprintf(name, sizeof name, "rank%d.err", number);
        if (control == NULL || out == NULL || freopen(name, "w", stderr) == NULL)
            fail(FAILED, "the streams of rank %d cannot be opened", number);
    }
    setvbuf(stdout, NULL, _IOLBF, 0);
    setvbuf(stderr, NULL, _IOLBF, 0);
    return control;
}

static FILE *prepare(char **argv)
{
    static char plugin[PATH_MAX];
    const int number = atoi(argv[3]);
    char name[NAME_BYTES];

    signal(SIGPIPE, SIG_IGN);
    plugin_path = realpath(argv[1], plugin);
    if (plugin_path == NULL || chdir(argv[2]) != 0)
        fail(BAD_USAGE, "%s or %s is not there", argv[1], argv[2]);
    FILE *control = take_streams(number);
    snprintf(name, sizeof name, "rank%d.job", number);
    read_job(name);
    rank.wake_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    return control;
}

int main(int argc, char **argv)
{
    pthread_t proxy, stream, control;

    if (argc != 6 || strcmp(argv[4], "--limit-s") != 0 || (limit_s = atoi(argv[5])) <= 0) {
        fprintf(stderr, "usage: %s PATH_OF_THE_PLUGIN FOLDER RANK --limit-s SECONDS\n", argv[0]);
        return BAD_USAGE;
    }
    FILE *lines = prepare(argv);
    plan_connections();
    connect_all(limit_s);
    const struct nccl nccl = load_plugin(NEWEST_VERSION);
    open_log();
    open_comms(&nccl);
    puts("ready");
    if (pthread_create(&control, NULL, run_control, lines) != 0 || pthread_create(&proxy, NULL, run_proxy, NULL) != 0
        || pthread_create(&stream, NULL, run_stream, NULL) != 0)
        fail(FAILED, "no more threads");
    run_steps();
    pthread_join(stream, NULL);
    pthread_join(proxy, NULL);
    pthread_join(control, NULL);
    for (int i = 0; i < job.ncomms; i++)
        close_comm(&comms[i]);
    return 0;
}
