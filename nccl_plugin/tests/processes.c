/* Processes: fork, closing and opening the library again, and the lock that tells who is alive. */
#define _POSIX_C_SOURCE 200809L

#include "harness.h"
#include "scenarios.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

static void wait_for(pid_t child)
{
    int status = -1;

    CHECK(child > 0 && waitpid(child, &status, 0) == child);
    EQUAL(status, 0);
}

/* --- fork --- */

struct forked {
    struct nccl nccl;
    struct comm comm;
    void *operation, *transfer, *step;
};

static void fork_open(struct forked *ours, int version)
{
    ours->nccl = load_plugin(version);
    ours->comm = open_comm(&ours->nccl, COMM_ID, 0, 2);
    ours->operation = enqueue_all_reduce(&ours->comm, 0);
    ours->transfer = begin_transfer(&ours->comm, ours->operation, 1, 0, 2, true);
    ours->step = begin_step(&ours->comm, ours->transfer, 0);
}

static void use_parents_handles(const struct forked *ours)
{
    record(&ours->comm, ours->step, ABI_SEND_WAIT, 64);
    stop(&ours->comm, ours->step);
    stop(&ours->comm, ours->transfer);
    for (uint64_t seq = 1; seq < 100; seq++)
        run_all_reduce(&ours->comm, seq);
    close_comm(&ours->comm);
}

static void check_parent_is_unharmed(const struct forked *ours)
{
    struct ringfile file = read_file_of((int)getpid());

    check_file(&file);
    EQUAL(transfer_of(&file, ours->transfer)->last_ticks, 0);
    EQUAL(count_records(&file, WIRE_ENQUEUED), 1);
    EQUAL(comm_at(&file, place_of_comm(&file, COMM_ID))->destroy_ticks, 0);
    stop(&ours->comm, ours->step);
    stop(&ours->comm, ours->transfer);
    run_all_reduce(&ours->comm, 1);
    EQUAL(find_row(&file, COMM_ID, WIRE_ALL_REDUCE, -1)->done, 2);
    EQUAL(count_open_transfers(&file), 0);
    close_file(&file);
}

static void play_silent_child(int version)
{
    struct forked ours;

    fork_open(&ours, version);
    const pid_t child = fork();
    if (child == 0) {
        use_parents_handles(&ours);
        EQUAL(count_files(), 1);
        _exit(EXIT_SUCCESS);
    }
    wait_for(child);
    check_parent_is_unharmed(&ours);
}

static void live_as_child(const struct forked *parents)
{
    const int lines = log_lines();
    const struct comm comm = open_comm(&parents->nccl, COMM_ID + 1, 1, 2);

    EQUAL(log_lines(), lines + (parents->nccl.version >= 4));
    EQUAL(count_files(), 2);
    for (uint64_t seq = 0; seq < 10; seq++)
        run_all_reduce(&comm, seq);
    stop(&comm, parents->step); /* the parent's handles are another process's here */
    stop(&comm, parents->transfer);
    struct ringfile file = read_own_file();
    check_file(&file);
    EQUAL(header_of(&file)->pid, getpid());
    EQUAL(count_records(&file, WIRE_ENQUEUED), 10);
    EQUAL(find_row(&file, COMM_ID + 1, WIRE_ALL_REDUCE, -1)->done, 10);
    EQUAL(place_of_comm(&file, COMM_ID), WIRE_NO_COMM);
    EQUAL(count_open_transfers(&file), 0);
    close_file(&file);
}

static void play_child_with_init(int version)
{
    struct forked ours;

    fork_open(&ours, version);
    const pid_t child = fork();
    if (child == 0) {
        live_as_child(&ours);
        _exit(EXIT_SUCCESS);
    }
    wait_for(child);
    check_parent_is_unharmed(&ours);
}

/* Forked while other threads are in callbacks and in init: the child has only the thread that forked, and may call init. */
enum { FORKS = 20 };

static void *keep_calling(void *argument)
{
    const struct comm *comm = argument;

    for (uint64_t seq = 0; seq < 20000; seq++) {
        run_all_reduce(comm, seq);
        if (seq % 4 == 0) {
            const struct comm short_lived = open_comm(comm->nccl, COMM_ID + 2, 0, 2);

            close_comm(&short_lived);
        }
    }
    return NULL;
}

/* Without an allocation: the allocator of a sanitizer may be locked by a thread that is not here. */
static void live_alone(const struct comm *comm)
{
    unsigned char descriptor[128 + 8];
    void *handle = NULL;

    alarm(HANGS_AFTER_S); /* a lock that nobody gives back would hang us */
    write_descriptor(comm->nccl->version, descriptor, comm, &(struct event){.type = ABI_COLL, .func = "AllReduce"});
    EQUAL(comm->nccl->table->start(comm->context, &handle, descriptor), LOCKSTEP_SUCCESS);
    CHECK(handle == NULL);
    open_comm(comm->nccl, COMM_ID + 3, 0, 2); /* the files are counted in the end */
    _exit(EXIT_SUCCESS);
}

static void *fork_often(void *argument)
{
    const struct comm *comm = argument;

    for (int i = 0; i < FORKS; i++) {
        const pid_t child = fork();

        if (child == 0)
            live_alone(comm);
        wait_for(child);
    }
    return NULL;
}

static void *run_role(void *argument)
{
    const struct comm *comm = argument;

    return comm->rank == 0 ? fork_often(argument) : keep_calling(argument);
}

static void play_fork_under_load(int version)
{
    const struct nccl nccl = load_plugin(version);
    const struct comm comms[] = {open_comm(&nccl, COMM_ID, 0, 2), open_comm(&nccl, COMM_ID + 1, 1, 2)};

    run_threads(2, run_role, (void *)comms, sizeof *comms);
    struct ringfile file = read_own_file();
    check_file(&file);
    EQUAL(count_files(), 1 + FORKS);
    EQUAL(find_row(&file, COMM_ID + 1, WIRE_ALL_REDUCE, -1)->done, 20000);
    close_file(&file);
}

/* --- closing and opening again --- */

static void play_reopen(int version)
{
    const struct nccl nccl = load_plugin(version);
    const struct comm first = open_comm(&nccl, COMM_ID, 0, 2);
    lockstep_stop_fn *const kept_stop = nccl.table->stop;

    run_all_reduce(&first, 0);
    close_comm(&first);
    dlclose(nccl.library);
    void *const resident = dlopen(plugin_path, RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);
    CHECK(resident != NULL); /* NCCL may still hold our functions */
    dlclose(resident);
    EQUAL(kept_stop(NULL), LOCKSTEP_SUCCESS);
    const struct nccl again = load_plugin(version);
    const struct comm second = open_comm(&again, COMM_ID + 1, 0, 2);
    run_all_reduce(&second, 8);
    struct ringfile file = read_own_file(); /* one file in the life of the process */
    check_file(&file);
    EQUAL(find_row(&file, COMM_ID, WIRE_ALL_REDUCE, -1)->done, 1);
    EQUAL(find_row(&file, COMM_ID + 1, WIRE_ALL_REDUCE, -1)->done, 9);
    EQUAL(log_lines(), version < 4 ? 0 : 1);
    close_file(&file);
}

/* --- who is alive --- */

/* Whom the kernel names as holder of the lock; 0 when nobody holds it. Asked in a process of its own, as the collector
 * is one: the lock goes when its holder closes any descriptor of the file. */
static int ask_for_holder(const char *path)
{
    int pipe_ends[2], holder = -1;

    CHECK(pipe(pipe_ends) == 0);
    const pid_t child = fork();
    if (child == 0) {
        struct flock whole = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
        const int file = open(path, O_RDWR);

        if (file < 0 || fcntl(file, F_GETLK, &whole) != 0)
            _exit(EXIT_FAILURE);
        holder = whole.l_type == F_UNLCK ? 0 : (int)whole.l_pid;
        _exit(write(pipe_ends[1], &holder, sizeof holder) == sizeof holder ? EXIT_SUCCESS : EXIT_FAILURE);
    }
    wait_for(child);
    CHECK(read(pipe_ends[0], &holder, sizeof holder) == sizeof holder);
    return holder;
}

static void play_lock(int version)
{
    int pipe_ends[2];
    char byte = 0;

    CHECK(pipe(pipe_ends) == 0);
    const pid_t rank = fork();
    if (rank == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL); /* it waits for the end that we give it, or for ours */
        const struct nccl nccl = load_plugin(version);
        const struct comm comm = open_comm(&nccl, COMM_ID, 0, 2);

        run_all_reduce(&comm, 0);
        const pid_t grandchild = fork(); /* its end does not end the lock */
        if (grandchild == 0)
            exit(EXIT_SUCCESS);
        wait_for(grandchild);
        close_comm(&comm);
        CHECK(write(pipe_ends[1], &byte, 1) == 1);
        pause();
    }
    CHECK(read(pipe_ends[0], &byte, 1) == 1);
    struct ringfile file = read_file_of((int)rank);
    EQUAL(ask_for_holder(file.path), rank);
    kill(rank, SIGKILL);
    waitpid(rank, NULL, 0);
    EQUAL(ask_for_holder(file.path), 0);
    check_file(&file); /* what a killed process leaves is whole */
    close_file(&file);
}

const struct scenario process_scenarios[] = {
    {"a forked child is silent", play_silent_child, NEWEST_VERSION, OLDEST_VERSION},
    {"a forked child with its own init", play_child_with_init, NEWEST_VERSION, OLDEST_VERSION},
    {"fork under load", play_fork_under_load, NEWEST_VERSION, NEWEST_VERSION},
    {"closed and opened again", play_reopen, NEWEST_VERSION, OLDEST_VERSION},
    {"the lock tells who is alive", play_lock, NEWEST_VERSION, NEWEST_VERSION},
    {NULL, NULL, 0, 0},
};
