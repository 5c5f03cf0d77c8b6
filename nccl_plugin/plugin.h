/* What the plugin's own files share: the session (one ring file), the producer (one thread's part of it), the clock.
 *
 * Everything in the file may be read by another process at any moment, and much of it by other threads of ours, so it is
 * written through STORE and ADD. Nothing read back from the file is used as an index before it was compared with a
 * limit. Nothing on the way of a callback takes a lock, allocates, or calls the system.
 */
#ifndef LOCKSTEP_PLUGIN_H
#define LOCKSTEP_PLUGIN_H

#include "abi.h"
#include "wire.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#if !defined(__x86_64__) && !defined(__aarch64__)
#error "Lockstep knows the counters of x86_64 and aarch64 only"
#endif

#define LOAD(place) __atomic_load_n(&(place), __ATOMIC_RELAXED)
#define STORE(place, value) __atomic_store_n(&(place), (value), __ATOMIC_RELAXED)
#define ADD(place, value) __atomic_fetch_add(&(place), (value), __ATOMIC_RELAXED)
#define UNLIKELY(condition) __builtin_expect(!!(condition), 0)

enum {
    MIN_RINGS = 2, /* the shared one and one more */
    MOST_RINGS = 6, /* threads that enqueue, and one per communicator that moves data; with more, rings would be short */
    LEAST_MIB = 4, /* of a ring file */
    COST_SAMPLE_MASK = 63, /* one callback in 64 is timed */
    FULL_SHARE = 65536,
};

/* One thread's part of the file, or (number 0) the part of all threads that found no other. */
struct producer {
    struct wire_ring *ring;
    struct wire_record *records;
    struct wire_operation *operations;
    struct wire_transfer *transfers;
    uint32_t number;
    uint32_t taken;  /* 1 while a thread has it */
    uint32_t thread;
    uint32_t session; /* serial of the session this belongs to */
    uint64_t head;
    uint32_t slot;  /* of the next record, and its stamp */
    uint32_t stamp;
    uint64_t next_operation;
    uint64_t next_transfer;
    struct wire_transfer *warm; /* the one given up last */
    uint64_t calls;
    uint64_t sampled_calls;
    uint64_t sampled_ticks;
} __attribute__((aligned(128)));

enum session_state { SESSION_NONE, SESSION_OPENING, SESSION_READY, SESSION_SILENT };

struct session {
    uint32_t state;
    uint32_t serial; /* a forked child has the next one */
    uint64_t tag;    /* shifted to its place in a handle */
    uint32_t rings;
    uint32_t ring_records; /* of each */
    uint32_t level;  /* in force, experiments of the governor apart */
    uint32_t share;
    uint32_t epoch;
    uint32_t kernel_channels;
    uint32_t api_version;
    uint32_t pid;
    uint32_t lead;   /* the communicator whose pace the governor watches; WIRE_NO_COMM while there is none */
    int *mask;       /* NCCL's, one per process */
    uint64_t ticks_per_second;
    uint64_t refresh_ticks; /* when clock and cost are looked at next */
    uint64_t clock_pairs;   /* published so far */
    uint32_t comms_used;    /* places of the table that were ever used */
    uint32_t rows_used;
    uint64_t api_handles;   /* given out so far */
    struct wire_header *header;
    struct wire_request *request;
    struct wire_status *status;
    struct wire_clock_pair *clocks;
    struct wire_comm *comms;
    struct wire_row *rows;
    struct wire_record *records;
    struct wire_operation *operations;
    struct wire_transfer *transfers;
};

extern struct session session;
extern struct producer producers[MOST_RINGS];

/* --- clock.c --- */

extern uint32_t clock_kind;
uint64_t clock_slow_ticks(void);
void clock_choose(void);
void clock_read_pair(struct wire_clock_pair *pair); /* all but the stamp */
void clock_publish_pair(const struct wire_clock_pair *pair);

static inline uint64_t clock_raw(void)
{
#if defined(__x86_64__)
    return __builtin_ia32_rdtsc(); /* __rdtsc() of x86intrin.h, which takes longer to read than our files to compile */
#else
    uint64_t ticks;
    __asm__ volatile("mrs %0, cntvct_el0" : "=r"(ticks));
    return ticks;
#endif
}

static inline uint64_t clock_ticks(void)
{
    return UNLIKELY(clock_kind > WIRE_CLOCK_CNTVCT) ? clock_slow_ticks() : clock_raw();
}

/* --- ringfile.c, guard.c, identity.c, release.c: what happens once --- */

bool ringfile_create(uint32_t mib, const char **problem); /* fills the session's pointers, or says why not */
void guard_memory(void *start, uint64_t bytes); /* of the ring file, against its being truncated */
void identity_fill(struct wire_header *header);
uint32_t release_version(const void *caller); /* as ncclGetVersion gives it, 0 when it cannot be told */
bool release_is_unsafe(uint32_t version, const void *caller, const char **why);
bool release_has_good_kernel_times(uint32_t version, uint32_t api_version);

/* --- options.c: what the environment says --- */

struct options {
    uint32_t level;
    uint32_t share;
    uint32_t budget_ppm;
    uint32_t ring_mib;
    int kernel_channels; /* -1: by release */
    uint32_t nccl_version;
};

bool options_read(struct options *options, const char **problem);

/* --- session.c --- */

struct communicator {
    uint64_t id;
    const char *name;
    uint32_t rank;
    uint32_t nranks;
    uint32_t nnodes;
};

void session_lock(void); /* init and finalize only */
void session_unlock(void);
void session_forget(void); /* in the child of a fork */
void session_refresh(uint64_t now);
void session_open(uint32_t api_version, int *mask, const void *caller, lockstep_log_fn *log);
void session_obey_request(void);
void session_set_level(uint32_t level); /* publishes the mask too; a level above off after off begins an epoch */
void session_experiment(uint32_t level); /* what is asked of NCCL for a while, the level in force unchanged */

/* --- rings.c --- */

struct producer *producer_attach(void);
bool producer_prepare_threads(void); /* once per process */
struct producer *producer_current(void);
void producer_account(struct producer *producer, uint64_t began);
struct wire_record *record_claim_shared(struct producer *producer, uint32_t *stamp);

/* A record to fill, or NULL when it is lost. */
static inline struct wire_record *record_begin(struct producer *producer, uint32_t *stamp)
{
    struct wire_record *record;

    if (UNLIKELY(producer->number == 0))
        return record_claim_shared(producer, stamp);
    record = &producer->records[producer->slot];
    *stamp = producer->stamp;
    STORE(record->stamp, WIRE_BUSY);
    __atomic_thread_fence(__ATOMIC_RELEASE);
    return record;
}

static inline void record_end(struct producer *producer, struct wire_record *record, uint32_t stamp)
{
    __atomic_store_n(&record->stamp, stamp, __ATOMIC_RELEASE);
    if (producer->number == 0)
        return;
    if (UNLIKELY(++producer->slot == session.ring_records)) { /* a division would cost more than all the rest */
        producer->slot = 0;
        producer->stamp++;
    }
    __builtin_prefetch(&producer->records[producer->slot], 1); /* a ring is larger than what caches keep */
    __atomic_store_n(&producer->ring->head, ++producer->head, __ATOMIC_RELEASE);
}

/* The producer of this thread, or NULL when nothing is to be recorded. */
static inline struct producer *producer_enter(void)
{
    if (UNLIKELY(__atomic_load_n(&session.state, __ATOMIC_ACQUIRE) != SESSION_READY))
        return NULL;
    return producer_current();
}

/* A callback that took no time: when its turn comes, reading the clock stands for what it cost. */
static inline void producer_pass(struct producer *producer)
{
    const uint64_t calls = LOAD(producer->calls) + 1;

    STORE(producer->calls, calls);
    if (UNLIKELY((calls & COST_SAMPLE_MASK) == 0))
        producer_account(producer, clock_ticks());
}

/* Counts the callback; one in 64 is timed. */
static inline void producer_leave(struct producer *producer, uint64_t began)
{
    const uint64_t calls = LOAD(producer->calls) + 1;

    STORE(producer->calls, calls);
    if (UNLIKELY((calls & COST_SAMPLE_MASK) == 0))
        producer_account(producer, began);
}

/* --- comms.c --- */

void *comm_open(const struct communicator *communicator);
void comm_close(void *context);
uint32_t comm_of(const void *context); /* place in the table, WIRE_NO_COMM for anything that is not ours */
void comm_learn(uint32_t comm, uint64_t id, uint32_t rank); /* before v4 only operations know these */
struct wire_row *row_find(uint32_t comm, uint32_t func, int32_t peer);

/* --- operations.c --- */

struct operation {
    uint32_t comm;
    uint8_t func;
    uint8_t dtype;
    uint8_t algo;
    uint8_t proto;
    uint8_t channels;
    bool captured;
    int32_t peer; /* -1 for collectives */
    int32_t root;
    uint64_t seq; /* collectives */
    uint64_t count;
};

uint64_t operation_begin(struct producer *producer, uint64_t now, const struct operation *operation);
struct wire_operation *operation_of(uint64_t handle); /* NULL unless it is ours and not reused */
void operation_part_begins(struct wire_operation *operation, uint64_t now);
void operation_kernel_begins(struct wire_operation *operation);
void operation_part_ends(uint64_t handle, uint64_t now);
void operation_part_is_lost(uint64_t handle); /* its place was needed: it ends without having been seen to */

/* --- transfers.c, steps.c --- */

struct proxy_operation {
    uint64_t parent;
    uint32_t comm;
    uint32_t pid;
    int32_t peer;
    uint32_t steps;
    uint8_t channel;
    bool send;
};

struct kernel_channel {
    uint64_t parent;
    uint32_t comm;
    uint8_t channel;
    uint64_t gpu_ns;
};

uint64_t transfer_begin(struct producer *producer, uint64_t now, const struct proxy_operation *proxy);
struct wire_transfer *transfer_of(uint64_t handle);
void transfer_end(struct producer *producer, uint64_t now, uint64_t handle);
uint64_t kernel_begin(struct producer *producer, uint64_t now, const struct kernel_channel *kernel);
void kernel_stops(uint64_t handle, uint64_t gpu_ns);
void kernel_end(struct producer *producer, uint64_t now, uint64_t handle);
uint64_t step_begin(uint64_t now, uint64_t parent, int32_t step);
void step_enters(uint64_t now, uint64_t handle, int state, uint64_t bytes);
void step_end(struct producer *producer, uint64_t now, uint64_t handle);
void steps_settle(struct wire_transfer *transfer, uint64_t now); /* charges the time up to now */

/* --- governor.c --- */

bool governor_enter(void); /* false when another thread is in: then not now */
void governor_leave(void);
void governor_reset(uint32_t budget_ppm); /* between enter and leave, or before there are threads */
void governor_operation(uint32_t comm, uint8_t func, uint64_t seq, uint64_t now);
void governor_look(uint64_t now); /* once a second: what do the callbacks cost? */

/* --- words.c: NCCL's names as numbers --- */

uint8_t word_func(const char *name);
uint8_t word_dtype(const char *name);
uint8_t word_algo(const char *name);
uint8_t word_proto(const char *name);
uint8_t number_func(uint8_t number); /* v1 gives numbers */
uint8_t number_dtype(uint8_t number);
uint8_t number_algo(uint8_t number);
uint8_t number_proto(uint8_t number);
uint64_t dtype_bytes(uint8_t dtype);

/* --- durations and handles --- */

static inline uint64_t wire_since(uint64_t ticks) { return ticks & ((UINT64_C(1) << 56) - 1); }

static inline uint32_t duration_pack(uint64_t ticks)
{
    const int bits = 64 - __builtin_clzll(ticks | 1);
    const uint32_t shift = bits > 27 ? (uint32_t)bits - 27 : 0;

    return shift > 31 ? WIRE_BUSY - 1 : shift << 27 | (uint32_t)(ticks >> shift);
}

static inline uint64_t handle_of(uint64_t kind, uint64_t generation, uint64_t slot)
{
    const uint64_t mask = (UINT64_C(1) << WIRE_GENERATION_BITS) - 1;

    return session.tag | kind << WIRE_KIND_SHIFT | (generation & mask) << WIRE_GENERATION_SHIFT | slot;
}

static inline uint64_t handle_generation(uint64_t handle)
{
    return handle >> WIRE_GENERATION_SHIFT & ((UINT64_C(1) << WIRE_GENERATION_BITS) - 1);
}

static inline uint32_t handle_slot(uint64_t handle) { return (uint32_t)(handle & 0xFFFF); }

static inline uint32_t handle_kind(uint64_t handle) { return (uint32_t)(handle >> WIRE_KIND_SHIFT & 7); }

static inline bool handle_is_ours(uint64_t handle)
{
    return handle >> WIRE_TAG_SHIFT == session.tag >> WIRE_TAG_SHIFT;
}

static inline bool handle_is_sampled(uint64_t handle) { return handle >> WIRE_SAMPLED_SHIFT & 1; }

/* Take a slot: from here on its handle is 0. In the shared set another thread may be at it: then false. A handle of 0
 * means that somebody fills it, unless the slot was never used. */
static inline bool slot_take(const struct producer *producer, uint64_t *handle, bool used, uint64_t *before)
{
    *before = LOAD(*handle);
    if (producer->number != 0)
        STORE(*handle, 0);
    else if ((*before == 0 && used)
             || !__atomic_compare_exchange_n(handle, before, 0, false, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED))
        return false;
    __atomic_thread_fence(__ATOMIC_RELEASE);
    return true;
}

/* Two handles name the same place in the same generation, whatever else they say. */
static inline bool handle_same_place(uint64_t one, uint64_t other)
{
    const uint64_t place = (UINT64_C(1) << (WIRE_GENERATION_SHIFT + WIRE_GENERATION_BITS)) - 1;

    return ((one ^ other) & place) == 0;
}

#endif
