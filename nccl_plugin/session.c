/* The session: from NCCL's first call in this process on there is one ring file, or silence. */
#define _GNU_SOURCE

#include "plugin.h"

#include <sched.h>
#include <string.h>
#include <unistd.h>

struct session session;

static uint32_t locked; /* init and finalize only: nothing that moves data ever waits here */

void session_lock(void)
{
    while (__atomic_exchange_n(&locked, 1, __ATOMIC_ACQUIRE) != 0)
        sched_yield();
}

void session_unlock(void) { __atomic_store_n(&locked, 0, __ATOMIC_RELEASE); }

/* The child of a fork shares our mapping but not our lock on the file: silent until NCCL calls init there. Whatever
 * another thread held at the fork is held by nobody now. */
void session_forget(void)
{
    session.serial++;
    session.state = SESSION_NONE;
    session_unlock();
    governor_leave();
}

/* A level's events. What is off still gets collectives, since only a callback can notice that it is to be on again.
 * Kernel channels are asked for always or never: NCCL's count of them goes wrong when they are switched. */
static int mask_of(uint32_t level)
{
    static const int events[] = {
        [WIRE_OFF] = ABI_COLL,
        [WIRE_OPERATIONS] = ABI_COLL | ABI_P2P,
        [WIRE_TRANSFERS] = ABI_COLL | ABI_P2P | ABI_PROXY_OP,
        [WIRE_STEPS] = ABI_COLL | ABI_P2P | ABI_PROXY_OP | ABI_PROXY_STEP,
        [WIRE_TRACE] = ABI_GROUP | ABI_COLL | ABI_P2P | ABI_PROXY_OP | ABI_PROXY_STEP | ABI_GROUP_API | ABI_COLL_API
                       | ABI_P2P_API | ABI_KERNEL_LAUNCH,
    };
    const uint32_t needed = level == WIRE_STEPS && LOAD(session.share) == 0 ? (uint32_t)WIRE_TRANSFERS : level;

    return events[needed] | (session.kernel_channels ? ABI_KERNEL_CHANNEL : 0);
}

void session_experiment(uint32_t level)
{
    const int mask = mask_of(level);
    int *place = LOAD(session.mask);

    STORE(session.status->mask, (uint32_t)mask);
    if (place != NULL)
        STORE(*place, mask); /* NCCL's int, which it reads on every call */
}

void session_set_level(uint32_t level)
{
    if (level > WIRE_OFF && LOAD(session.level) == WIRE_OFF) {
        STORE(session.epoch, LOAD(session.epoch) + 1);
        STORE(session.status->epoch, LOAD(session.epoch));
    }
    STORE(session.level, level);
    STORE(session.status->level, level);
    STORE(session.status->share, LOAD(session.share));
    session_experiment(level);
}

/* The collector has written a request. What makes no sense is acknowledged and changes nothing. */
void session_obey_request(void)
{
    const uint32_t stamp = __atomic_load_n(&session.request->stamp, __ATOMIC_ACQUIRE);
    const uint32_t level = LOAD(session.request->level), share = LOAD(session.request->share);
    const uint32_t budget_ppm = LOAD(session.request->budget_ppm);

    if (LOAD(session.status->stamp) == stamp || !governor_enter())
        return;
    if (level <= WIRE_TRACE && share <= FULL_SHARE) {
        STORE(session.share, share);
        if (budget_ppm != 0)
            STORE(session.status->budget_ppm, budget_ppm);
        STORE(session.status->lowered, WIRE_NOT_LOWERED);
        governor_reset(LOAD(session.status->budget_ppm));
        session_set_level(level);
    }
    __atomic_store_n(&session.status->stamp, stamp, __ATOMIC_RELEASE);
    governor_leave();
}

/* Once a second, from whichever thread enqueues: a new pair for the clock, and a look at the cost. */
void session_refresh(uint64_t now)
{
    uint64_t due = LOAD(session.refresh_ticks);
    struct wire_clock_pair pair;

    if (now < due
        || !__atomic_compare_exchange_n(&session.refresh_ticks, &due, now + session.ticks_per_second, false,
                                        __ATOMIC_RELAXED, __ATOMIC_RELAXED))
        return;
    clock_read_pair(&pair);
    clock_publish_pair(&pair);
    governor_look(now);
}

static uint64_t rate_between(const struct wire_clock_pair *one, const struct wire_clock_pair *other)
{
    const uint64_t ns = other->unix_ns - one->unix_ns;

    if (clock_kind >= WIRE_CLOCK_MONOTONIC || ns == 0 || other->unix_ns < one->unix_ns)
        return UINT64_C(1000000000);
    return (uint64_t)((double)(other->ticks - one->ticks) * 1e9 / (double)ns);
}

static void begin(const struct options *options)
{
    struct wire_clock_pair second;

    session.share = options->share;
    session.level = WIRE_OFF;
    session.epoch = options->level == WIRE_OFF ? 1 : 0;
    session.lead = WIRE_NO_COMM;
    session.status->epoch = session.epoch;
    session.status->budget_ppm = options->budget_ppm;
    session.header->nccl_version = options->nccl_version;
    session.header->kernel_channels = session.kernel_channels;
    governor_reset(options->budget_ppm);
    clock_read_pair(&second);
    clock_publish_pair(&second);
    session.ticks_per_second = rate_between(&session.clocks[0], &second);
    session.refresh_ticks = second.ticks + session.ticks_per_second / 10;
    session_set_level(options->level);
    __atomic_store_n(&session.header->ready, 1, __ATOMIC_RELEASE);
}

/* Kernel times show what stays inside a host, and whose GPU comes late, which nothing else does; they cost a few percent
 * of a tiny operation: asked for where the release is good. */
static bool wants_kernel_times(const struct options *options)
{
    if (options->kernel_channels >= 0)
        return session.api_version >= 4 && options->kernel_channels;
    return release_has_good_kernel_times(options->nccl_version, session.api_version);
}

static const char *open_session(const void *caller)
{
    struct options options;
    const char *problem = NULL;

    if (!options_read(&options, &problem))
        return problem;
    if (options.nccl_version == 0)
        options.nccl_version = release_version(caller);
    if (release_is_unsafe(options.nccl_version, caller, &problem))
        return problem;
    session.kernel_channels = wants_kernel_times(&options);
    if (!producer_prepare_threads())
        return "no key for threads";
    if (!ringfile_create(options.ring_mib, &problem))
        return problem;
    begin(&options);
    return NULL;
}

static void greet(lockstep_log_fn *log, const char *problem)
{
    static const char *const levels[] = {"off", "operations", "transfers", "steps", "trace"};

    if (log == NULL)
        return;
    if (problem != NULL)
        log(LOCKSTEP_LOG_INFO, LOCKSTEP_LOG_PROFILE, __func__, __LINE__, "lockstep %s: silent: %s", LOCKSTEP_VERSION,
            problem);
    else
        log(LOCKSTEP_LOG_INFO, LOCKSTEP_LOG_PROFILE, __func__, __LINE__, "lockstep %s: recording %s%s",
            LOCKSTEP_VERSION, levels[session.level], session.kernel_channels ? " and kernel times" : "");
}

static uint64_t make_tag(uint32_t pid)
{
    struct wire_clock_pair now;

    clock_read_pair(&now);
    return ((now.unix_ns >> 10 ^ pid * UINT64_C(40503)) % 0xFFFF + 1) << WIRE_TAG_SHIFT;
}

/* Called with the lock held, for every communicator; only the first one opens. */
void session_open(uint32_t api_version, int *mask, const void *caller, lockstep_log_fn *log)
{
    const char *problem;

    if (session.state == SESSION_NONE) {
        const uint32_t serial = session.serial;

        memset(&session, 0, sizeof session);
        session.serial = serial;
        session.api_version = api_version;
        session.pid = (uint32_t)getpid();
        clock_choose();
        session.tag = make_tag(session.pid);
        problem = open_session(caller);
        greet(log, problem);
        __atomic_store_n(&session.state, problem == NULL ? SESSION_READY : SESSION_SILENT, __ATOMIC_RELEASE);
    }
    STORE(session.mask, mask);
    if (session.state == SESSION_READY)
        session_experiment(LOAD(session.level));
    else if (mask != NULL)
        STORE(*mask, 0);
}
