/* What scenarios are made of: checks, threads that do one thing at a time, NCCL's side of the calls, and the ring file
 * read back.
 *
 * Every scenario runs in a process of its own, which the driver forks before the plugin is loaded, so each begins with
 * a plugin that was never there. Descriptors are written by numbers (nccl.c), not by the plugin's own headers: a wrong
 * member there fails here.
 */
#ifndef LOCKSTEP_TESTS_HARNESS_H
#define LOCKSTEP_TESTS_HARNESS_H

#include "../abi.h"
#include "../wire.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    OLDEST_VERSION = 1,
    NEWEST_VERSION = 7,
    COMM_ID = 0xabcdef,
    PATH_BYTES = 512,
    HANGS_AFTER_S = 1800, /* far more than any scenario takes under a sanitizer on a busy machine */
};

/* --- check.c --- */

/* A check that does not hold prints what it is about and ends the scenario. */
#define CHECK(condition) check_that((condition), __FILE__, __LINE__, #condition)
#define EQUAL(actual, expected) \
    check_equal((uint64_t)(actual), (uint64_t)(expected), __FILE__, __LINE__, #actual)

void check_that(bool holds, const char *file, int line, const char *statement);
void check_equal(uint64_t actual, uint64_t expected, const char *file, int line, const char *expression);
unsigned long checks_made(void);
void skip_scenario(const char *reason) __attribute__((noreturn)); /* a failure where LOCKSTEP_CI is set */

/* A thread that does what it is told, one thing after the other; `work` comes back when it is done. */
struct worker;
struct worker *hire(void);
void work(struct worker *worker, void (*job)(void *), void *argument);
void dismiss(struct worker *worker);

void run_threads(int count, void *(*body)(void *), void *arguments, size_t argument_bytes);

/* --- directory.c --- */

void make_directory(char *path); /* of PATH_BYTES */
void remove_directory(const char *path);

/* --- nccl.c: what NCCL does --- */

extern const char *plugin_path;
extern int nccl_mask;    /* NCCL's own event mask, one per process */
extern int nccl_release; /* what ncclGetVersion answers, 22809 for 2.28.9; -1: it fails; 0: the usual one of the version */

struct nccl {
    void *library;
    const struct lockstep_profiler *table;
    int version; /* of the profiler interface */
};

struct comm {
    const struct nccl *nccl;
    void *context;
    uint64_t id;
    int rank, nranks;
};

/* What an event says, whatever the version writes it like; what is not of its type is not read. */
struct event {
    uint64_t type;
    void *parent, *group;
    const char *func, *dtype, *algo, *proto;
    uint64_t seq, count, gpu_ns;
    int root, peer, channels, channel;
    int pid, steps, chunk, send, step;
    bool captured;
};

/* An NCCL that knows the versions up to this one takes the newest that the plugin offers. */
struct nccl load_plugin(int newest_version);
const struct lockstep_profiler *find_table(void *library, int version);
int usual_release(int version);

/* On two hosts. */
struct comm open_comm(const struct nccl *nccl, uint64_t id, int rank, int nranks);
void close_comm(const struct comm *comm);
void *start(const struct comm *comm, const struct event *event);
void stop(const struct comm *comm, void *handle);
void record(const struct comm *comm, void *handle, int state, uint64_t value);
bool is_asked_for(unsigned types);

int log_lines(void);
bool is_logged(const char *part); /* whether a line so far contains it */
void nccl_log(int level, unsigned long subsystem, const char *function, int line, const char *format, ...)
    __attribute__((format(printf, 5, 6)));

extern uint64_t now_ns; /* the plugin's clock, once it is replayed */
#define UNIX_AT_ZERO_NS UINT64_C(1700000000000000000)
void use_replay_clock(const struct nccl *nccl);

/* --- layouts.c --- */

size_t descriptor_bytes(int version);
void write_descriptor(int version, unsigned char *descriptor, const struct comm *comm, const struct event *event);

/* --- play.c: the callbacks of an operation, in NCCL's order and as far as the mask asks for them --- */

void *enqueue_collective(const struct comm *comm, const struct event *coll);
void *enqueue_all_reduce(const struct comm *comm, uint64_t seq);  /* of 1,024 floats */
void *enqueue_p2p(const struct comm *comm, bool send, int peer, uint64_t count);
void *begin_transfer(const struct comm *comm, void *operation, int peer, int channel, int steps, bool send);
void *begin_step(const struct comm *comm, void *transfer, int step);
void pass_state(const struct comm *comm, void *transfer, void *step, int state, uint64_t bytes);
void run_send_step(const struct comm *comm, void *transfer, int step, uint64_t bytes);
void run_recv_step(const struct comm *comm, void *transfer, int step, uint64_t bytes);
void run_kernel_channel(const struct comm *comm, void *operation, int channel, uint64_t start_ns, uint64_t stop_ns);
void run_all_reduce(const struct comm *comm, uint64_t seq); /* all of one, on this thread */

/* --- ringfile.c --- */

struct ringfile {
    const unsigned char *bytes;
    size_t size;
    char path[PATH_BYTES];
};

int count_files(void); /* in LOCKSTEP_RING_DIR */
struct ringfile read_file_of(int pid);
struct ringfile read_own_file(void);
void close_file(struct ringfile *file);
const struct wire_header *header_of(const struct ringfile *file);
const struct wire_status *status_of(const struct ringfile *file);
const struct wire_comm *comm_at(const struct ringfile *file, unsigned place);
const struct wire_ring *ring_at(const struct ringfile *file, unsigned number);
const struct wire_row *row_at(const struct ringfile *file, unsigned place);
const struct wire_record *record_at(const struct ringfile *file, unsigned ring, uint64_t number);
const struct wire_operation *operation_at(const struct ringfile *file, uint64_t place);
const struct wire_transfer *transfer_at(const struct ringfile *file, uint64_t place);
uint64_t ring_records(const struct ringfile *file);
uint64_t oldest_number(const struct ringfile *file, unsigned ring); /* of the records that it still holds */
const struct wire_operation *operation_of(const struct ringfile *file, const void *handle);
const struct wire_transfer *transfer_of(const struct ringfile *file, const void *handle);

unsigned place_of_comm(const struct ringfile *file, uint64_t id);
const struct wire_row *find_row(const struct ringfile *file, uint64_t comm_id, unsigned func, int peer);
/* The number-th record of a kind, over all rings, each in its order; NULL when there are fewer. */
const struct wire_record *find_record(const struct ringfile *file, unsigned kind, unsigned number);
unsigned count_records(const struct ringfile *file, unsigned kind);
unsigned count_open_transfers(const struct ringfile *file);
uint64_t sum_of_heads(const struct ringfile *file);
uint64_t duration_of(uint32_t packed);

/* --- invariants.c --- */

void check_file(const struct ringfile *file); /* which nobody writes at the moment */

/* --- collector.c --- */

void write_request(const struct ringfile *file, struct wire_request request);
/* Writes a request and plays operations until it is carried out. */
void request(const struct comm *comm, unsigned level, double share, unsigned budget_ppm, uint64_t *seq);

#endif
