/* What the files of `worker` share: one process that is one rank of a job, sends over real sockets, and calls the plugin
 * as NCCL does with its socket transport.
 *
 * Four threads. The main one is the application: it enqueues. `stream` is the GPU's: it computes, begins and ends kernels,
 * and tells of their channels as NCCL's profiler thread does. `proxy` moves the data of all connections, and runs the
 * programs of the kernel that has begun. `control` takes lines from outside. What they share is in `rank`, below its
 * lock; connections and transfers are the proxy's alone from the first step on.
 */
#ifndef LOCKSTEP_TESTS_WORKER_H
#define LOCKSTEP_TESTS_WORKER_H

#include "harness.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>

enum {
    MOST_NICS = 8,
    MOST_CHANNELS = 32,
    MOST_COMMS = 32,
    MOST_MIXES = 2,
    MOST_PROGRAMS = 2, /* of one channel: a tree goes up and down at the same time */
    MOST_PEERS = 2,    /* of one program in one direction: the children in a tree */
    STEPS_AHEAD = 8,   /* NCCL's buffers of a connection */
    NAME_BYTES = 64,
};

enum { FAILED = 1, BAD_USAGE = 2, TOO_LATE = 3 }; /* exit codes */

/* --- worker_job.c: what this rank is told --- */

struct told_comm {
    uint64_t id;
    char name[NAME_BYTES];
    int rank, nranks, nnodes;
    int *world; /* rank in the job of each rank */
};

struct told_item {
    bool is_compute;
    double ms, noise; /* of compute: its length, and the standard deviation as a share of it */
    bool spins;       /* burns CPU instead of sleeping */
    bool joined;      /* of operations: in one group with the one before */
    int comm;
    const char *func, *algo;
    uint64_t bytes;
    int channels, peer; /* peer: -1 but for sends and receives */
};

struct told_mix {
    struct told_item *items;
    int nitems;
};

struct told_port {
    int comm, channel, peer, port;
};

struct told_nic {
    char name[NAME_BYTES], address[NAME_BYTES];
};

struct job {
    int rank, nranks;
    uint64_t seed, steps; /* no steps: until it is told to leave */
    size_t chunk_bytes;
    int buffer_bytes;
    char (*hosts)[NAME_BYTES]; /* of all ranks */
    struct told_nic nics[MOST_NICS];
    struct told_comm comms[MOST_COMMS];
    struct told_mix mixes[MOST_MIXES]; /* what a step is, in the beginning and after the job has changed */
    struct told_port *ports;
    int nnics, ncomms, nmixes, nports;
};

extern struct job job;

void read_job(const char *path);
bool is_send_or_recv(const struct told_item *item);
void fail(int code, const char *format, ...) __attribute__((noreturn, format(printf, 2, 3)));

/* --- worker_schedule.c: who sends what to whom, as NCCL's kernels do --- */

/* What one channel's kernel does: so many rounds. In each it takes a step of every receive and fills one of every send,
 * except that with a `period` above 1 the first of so many rounds only sends and the last only receives. */
struct program {
    int receives[MOST_PEERS], sends[MOST_PEERS]; /* ranks in the communicator */
    int nreceives, nsends;
    int period;
    uint64_t rounds;
    size_t step_bytes;
};

int plan_programs(const struct told_item *item, int channel, struct program programs[MOST_PROGRAMS]);
uint64_t steps_of(const struct program *program); /* of each of its connections */
int channel_of(const struct told_item *item, int channel);

/* --- worker_connections.c: which connections there are --- */

struct transfer;

struct message {
    uint64_t number; /* of its transfer on this connection */
    uint64_t bytes;  /* of the data that follows */
};

struct connection {
    int comm, channel, peer; /* peer: rank in the communicator */
    bool is_p2p, sends;
    bool is_local; /* inside of a host, where NCCL uses shared memory and tells of no transfers */
    int fd;
    bool is_ready, is_closed;      /* the kernel may have data, or room; the other side has gone */
    bool is_out_of_step;           /* the other side sends more of an operation than this one expects: both wait for ever */
    int wake_bytes;                /* that the kernel waits for before it wakes the proxy */
    uint64_t appended;             /* transfers so far */
    struct message message;        /* under way */
    size_t moved_bytes;            /* of it and its data */
    struct transfer *first, *last; /* in the order in which they were enqueued */
};

extern struct connection *connections;
extern int nconnections;

void plan_connections(void);
struct connection *find_connection(int comm, int channel, bool is_p2p, int peer, bool sends);
int pace_channel(int channel, uint64_t bytes_per_s); /* 0: without limit; returns how many connections that are */
int nic_of(int channel);

/* --- worker_net.c: all are made before the first step --- */

void connect_all(int limit_s);

/* --- worker_log.c: NCCL's own log, where NCCL_DEBUG_FILE asks for it --- */

void open_log(void);
void log_network(void);
void log_comm(int comm, const char *what); /* "Init START" and the like */
void log_connections(int comm);
void log_closed(const struct connection *connection);

/* --- operations, transfers, and the state that threads share --- */

struct running_program {
    struct program program;
    struct transfer *receives[MOST_PEERS], *sends[MOST_PEERS];
    uint64_t round;
};

struct operation {
    struct operation *next_posted;
    const struct told_item *item;
    struct comm *comm;
    void *handle;
    void *kernels[MOST_CHANNELS];
    struct running_program *programs;
    int nprograms;
    atomic_int parts; /* transfers and one kernel; whoever ends the last one frees it */
};

struct transfer {
    struct transfer *next;
    struct operation *operation;
    struct connection *connection;
    void *handle, *steps[STEPS_AHEAD];
    bool is_in_progress;
    uint64_t number;
    size_t step_bytes;
    /* How far it is. A send is posted, filled by the GPU, transmitted and done; a receive is posted, received,
     * transmitted to the GPU, consumed by it and done. */
    uint64_t nsteps, posted, filled, received, transmitted, consumed, done;
};

struct kernel { /* what the stream does next: compute, or the operations of one group */
    struct kernel *next;
    double compute_ns;
    bool spins;
    struct operation **operations;
    int noperations;
};

struct rank {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct kernel *first, *last; /* of the stream */
    struct kernel *running;
    struct operation *posted, *last_posted; /* for the proxy to take over */
    uint64_t enqueued, finished;            /* kernels */
    int open_operations;
    bool is_leaving;
    int wake_fd; /* of the proxy */
};

extern struct rank rank;
extern struct comm comms[MOST_COMMS];

uint64_t unix_ns(void);
void wake_proxy(void);
void part_ends(struct operation *operation);

/* --- worker_enqueue.c, on the application's thread --- */

void enqueue_step(uint64_t step);

/* --- worker_proxy.c --- */

void *run_proxy(void *unused);

/* --- worker_bytes.c, on the proxy's thread --- */

void make_buffer(void);
/* Both return whether something moved. */
bool push_bytes(struct connection *connection, const struct transfer *transfer);
bool pull_bytes(struct connection *connection, const struct transfer *transfer);
bool has_moved_all(const struct connection *connection); /* of the step that is under way */

/* --- worker_gpu.c --- */

void *run_stream(void *unused);
bool run_programs(struct kernel *kernel); /* on the proxy's thread; returns whether something moved */
bool has_ended(const struct kernel *kernel);

/* --- worker_control.c --- */

struct faults {
    atomic_long late_ns;     /* before the first operation of each step */
    atomic_long pause_ns;    /* the same, of the next step only */
    atomic_long slow_permil; /* 1,000: compute takes as long as told */
    atomic_long slow_share;  /* of the steps, in thousandths */
    atomic_long mismatch;    /* the next operation has so many times its bytes; 0: as told */
    atomic_long second_from; /* step from which on the second mix is what the job does */
    atomic_bool absent, stuck, reversed;
};

extern struct faults faults;
void *run_control(void *file);

#endif
