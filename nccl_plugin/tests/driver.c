/* Plays NCCL without a GPU: loads the plugin as NCCL does, calls it in right and in hostile orders, says what held.
 *
 * usage: driver PATH_OF_THE_PLUGIN; prints one line per check and ends with 1 at the first that fails.
 * The order of the parts matters: the plugin greets the first who brings a logger, and threads shall race for that.
 */
#define _POSIX_C_SOURCE 200809L

#include "../abi.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
    NEWEST_VERSION = 7,
    OLDEST_VERSION = 4, /* older tables do not say which communicator speaks */
    EVERYTHING = 0xffff, /* all event types up to v7 */
    DESCRIPTOR_BYTES = 136, /* the longest one, v7's */
    LOWEST_ADDRESS = 4096, /* nothing is mapped in the first page, so what is smaller is no address */
    THREADS = 8,
    ROUNDS = 1000,
    COMM_ID = 0xabcdef,
};

/* The plugin is built from the same header, so the header's layout is held against NCCL's numbers here. */
#define AT(member, offset) _Static_assert(offsetof(struct lockstep_profiler, member) == (offset), #member)
AT(name, 0);
AT(init, 8);
AT(start, 16);
AT(stop, 24);
AT(record, 32);
AT(finalize, 40);
AT(reserved, 48);

static const char expected_greeting[] = "lockstep " LOCKSTEP_VERSION ": loaded, recording nothing";
static char garbage; /* its address is what an unwritten handle or context would leave behind */

static int nccl_event_mask; /* one per process, as in NCCL */
static atomic_int log_lines;
static atomic_int odd_log_lines;

static void check(bool holds, const char *statement)
{
    printf("%s: %s\n", holds ? "ok" : "FAILED", statement);
    if (!holds)
        exit(EXIT_FAILURE);
}

static void check_version(bool holds, int version, const char *statement)
{
    char line[160];

    snprintf(line, sizeof line, "v%d %s", version, statement);
    check(holds, line);
}

static void nccl_log(int level, unsigned long subsystem, const char *function, int line, const char *format, ...)
{
    char text[256];
    va_list arguments;

    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    atomic_fetch_add(&log_lines, 1);
    if (level != 3 || subsystem != 0x4000 || function == NULL || line <= 0 || strcmp(text, expected_greeting) != 0)
        atomic_fetch_add(&odd_log_lines, 1);
}

static void *open_as_nccl_does(const char *path)
{
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);

    if (library == NULL)
        fprintf(stderr, "%s\n", dlerror());
    check(library != NULL, "the library opens with every symbol resolved at once");
    return library;
}

static struct lockstep_profiler *find_table(void *library, int version)
{
    char symbol[32];

    snprintf(symbol, sizeof symbol, "ncclProfiler_v%d", version);
    return dlsym(library, symbol);
}

static int call_init(const struct lockstep_profiler *table, int version, void **context, int *event_mask,
                     lockstep_log_fn *log)
{
    if (version == 4)
        return table->init.v4(context, event_mask, "world", COMM_ID, 2, 16, 3, log);
    return table->init.v5(context, COMM_ID, event_mask, "world", 2, 16, 3, log);
}

/* --- the tables --- */

static bool is_zero(const void *const *members, int count)
{
    for (int i = 0; i < count; i++)
        if (members[i] != NULL)
            return false;
    return true;
}

static void check_table(const struct lockstep_profiler *table, int version)
{
    check_version(table->name != NULL && strcmp(table->name, "lockstep") == 0, version, "is named lockstep");
    check_version(table->init.v5 && table->start && table->stop && table->record && table->finalize, version,
                  "offers all five functions");
    check_version(is_zero((const void *const *)table->reserved, LOCKSTEP_RESERVED_MEMBERS), version,
                  "ends in zeros for a longer reader");
}

static void check_tables(void *library)
{
    for (int version = NEWEST_VERSION; version >= 1; version--) {
        const struct lockstep_profiler *table = find_table(library, version);

        if (version < OLDEST_VERSION) {
            check_version(table == NULL, version, "is not offered");
        } else {
            check_version(table != NULL, version, "is offered");
            check_table(table, version);
        }
    }
}

/* --- a communicator's life as NCCL leads it, but without a logger --- */

static void check_life(const struct lockstep_profiler *table, int version)
{
    unsigned char descriptor[DESCRIPTOR_BYTES];
    void *context = NULL, *other_context = NULL, *handle = &garbage;

    memset(descriptor, 0xa5, sizeof descriptor); /* NCCL's shims leave stack rubbish in what an event does not use */
    nccl_event_mask = EVERYTHING;
    check_version(call_init(table, version, &context, &nccl_event_mask, NULL) == 0, version, "init succeeds");
    check_version(nccl_event_mask == 0, version, "init asks for no events");
    call_init(table, version, &other_context, &nccl_event_mask, NULL);
    check_version(context != NULL && other_context != NULL && context != other_context, version,
                  "init gives each communicator a context of its own");
    check_version((uintptr_t)context < LOWEST_ADDRESS, version, "init's context is a number and no address");
    check_version(table->start(context, &handle, descriptor) == 0, version, "start succeeds");
    check_version(handle == NULL, version, "start writes the handle");
    check_version(table->record(handle, 22, descriptor) == 0, version, "record succeeds");
    check_version(table->stop(handle) == 0, version, "stop succeeds");
    check_version(table->finalize(context) == 0 && table->finalize(other_context) == 0, version, "finalize succeeds");
}

/* --- what NCCL should not do, and partly does --- */

static void check_null_arguments(const struct lockstep_profiler *table, int version)
{
    void *context = NULL, *handle = &garbage;

    check_version(call_init(table, version, NULL, &nccl_event_mask, nccl_log) == 0, version,
                  "init without a context");
    check_version(call_init(table, version, &context, NULL, nccl_log) == 0, version, "init without a mask");
    check_version(call_init(table, version, NULL, NULL, NULL) == 0, version, "init without anything");
    check_version(table->start(NULL, &handle, NULL) == 0 && handle == NULL, version,
                  "start without context and descriptor still writes the handle");
    check_version(table->start(context, NULL, NULL) == 0, version, "start without a place for the handle");
    check_version(table->stop(NULL) == 0, version, "stop without a handle");
    check_version(table->record(NULL, 24, NULL) == 0, version, "record without handle and arguments");
    check_version(table->finalize(NULL) == 0, version, "finalize without a context");
}

static void check_foreign_values(const struct lockstep_profiler *table, int version)
{
    void *const foreign = (void *)UINTPTR_MAX; /* nothing is mapped there, so looking inside would end us */
    void *handle = &garbage;

    check_version(table->start(foreign, &handle, NULL) == 0 && handle == NULL, version, "start in a foreign context");
    check_version(table->stop(foreign) == 0 && table->stop(foreign) == 0, version, "stop of a foreign handle, twice");
    check_version(table->record(foreign, -1, foreign) == 0, version, "record of an unknown state, all foreign");
    check_version(table->finalize(foreign) == 0, version, "finalize of a foreign context");
}

static void check_late_calls(const struct lockstep_profiler *table, int version)
{
    void *context = NULL, *handle = &garbage;

    call_init(table, version, &context, &nccl_event_mask, nccl_log);
    table->start(context, &handle, NULL);
    table->stop(handle);
    check_version(table->stop(handle) == 0, version, "second stop of one handle");
    check_version(table->record(handle, 22, NULL) == 0, version, "record after stop");
    table->finalize(context);
    check_version(table->stop(handle) == 0 && table->record(handle, 22, NULL) == 0, version,
                  "stop and record after finalize");
    handle = &garbage;
    check_version(table->start(context, &handle, NULL) == 0 && handle == NULL, version, "start after finalize");
    check_version(table->finalize(context) == 0, version, "second finalize");
}

/* --- many threads --- */

struct caller {
    pthread_t thread;
    pthread_barrier_t *together;
    const struct lockstep_profiler *table;
    int version;
    void *context;
    int failures;
};

static void *call_from_thread(void *argument)
{
    struct caller *caller = argument;
    const struct lockstep_profiler *table = caller->table;

    pthread_barrier_wait(caller->together);
    caller->failures += call_init(table, caller->version, &caller->context, &nccl_event_mask, nccl_log) != 0;
    caller->failures += caller->context == NULL;
    for (int round = 0; round < ROUNDS; round++) {
        void *handle = &garbage;

        caller->failures += __atomic_load_n(&nccl_event_mask, __ATOMIC_RELAXED) != 0;
        caller->failures += table->start(caller->context, &handle, NULL) != 0 || handle != NULL;
        caller->failures += table->record(handle, 22, NULL) != 0 || table->stop(handle) != 0;
    }
    caller->failures += table->finalize(caller->context) != 0;
    return NULL;
}

static void run_callers(void *library, struct caller *callers)
{
    pthread_barrier_t together;

    pthread_barrier_init(&together, NULL, THREADS);
    for (int i = 0; i < THREADS; i++) {
        const int version = OLDEST_VERSION + i % (NEWEST_VERSION - OLDEST_VERSION + 1);

        callers[i] = (struct caller){
            .together = &together, .table = find_table(library, version), .version = version};
        if (pthread_create(&callers[i].thread, NULL, call_from_thread, &callers[i]) != 0)
            check(false, "a thread could be started");
    }
    for (int i = 0; i < THREADS; i++)
        pthread_join(callers[i].thread, NULL);
    pthread_barrier_destroy(&together);
}

static bool are_contexts_distinct(const struct caller *callers)
{
    for (int i = 0; i < THREADS; i++)
        for (int j = 0; j < i; j++)
            if (callers[i].context == callers[j].context)
                return false;
    return true;
}

static void check_threads(void *library)
{
    struct caller callers[THREADS];
    int failures = 0;

    nccl_event_mask = EVERYTHING;
    run_callers(library, callers);
    for (int i = 0; i < THREADS; i++)
        failures += callers[i].failures;
    check(failures == 0, "eight threads at once: every call succeeds and nothing is asked for");
    check(are_contexts_distinct(callers), "eight threads at once: no two communicators share a context");
    check(log_lines == 1, "eight threads at once: one of them is greeted");
}

/* --- fork, close and reopen --- */

static void live_in_child(const struct lockstep_profiler *table, void *context, void *handle)
{
    const int lines_before = log_lines;
    void *own_context = NULL;

    check(table->stop(handle) == 0 && table->finalize(context) == 0,
          "child: the parent's handle and context are safe");
    call_init(table, NEWEST_VERSION, &own_context, &nccl_event_mask, nccl_log);
    call_init(table, NEWEST_VERSION, &own_context, &nccl_event_mask, nccl_log);
    check(log_lines == lines_before + 1, "child: greeted once, as a process of its own");
    check(table->finalize(own_context) == 0, "child: finalize succeeds");
}

static void check_fork(void *library)
{
    const struct lockstep_profiler *table = find_table(library, NEWEST_VERSION);
    void *context = NULL, *handle = &garbage;
    int status = -1;

    call_init(table, NEWEST_VERSION, &context, &nccl_event_mask, nccl_log);
    table->start(context, &handle, NULL);
    const pid_t child = fork();
    if (child == 0) {
        live_in_child(table, context, handle);
        _exit(EXIT_SUCCESS);
    }
    check(child > 0 && waitpid(child, &status, 0) == child && status == 0, "fork: the child ends well");
    check(table->stop(handle) == 0 && table->finalize(context) == 0, "fork: the parent goes on");
}

static void check_reopen(void *library, const char *path)
{
    const struct lockstep_profiler *table = find_table(library, NEWEST_VERSION);
    lockstep_stop_fn *const kept_stop = table->stop;
    void *context = NULL;

    dlclose(library);
    void *const resident = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);
    check(resident != NULL, "close: the library stays in memory");
    dlclose(resident);
    check(kept_stop(NULL) == 0, "close: a late stop is still safe");
    check(find_table(open_as_nccl_does(path), NEWEST_VERSION) == table, "reopen: the same table is found");
    check(call_init(table, NEWEST_VERSION, &context, &nccl_event_mask, nccl_log) == 0 && context != NULL,
          "reopen: init succeeds");
}

int main(int argc, char **argv)
{
    if (argc != 2) {
        fprintf(stderr, "usage: %s PATH_OF_THE_PLUGIN\n", argv[0]);
        return 2;
    }
    setvbuf(stdout, NULL, _IOLBF, 0); /* a crash must not swallow the lines that say how far we came */
    void *library = open_as_nccl_does(argv[1]);

    check_tables(library);
    for (int version = NEWEST_VERSION; version >= OLDEST_VERSION; version--)
        check_life(find_table(library, version), version);
    check_threads(library);
    for (int version = NEWEST_VERSION; version >= OLDEST_VERSION; version--) {
        check_null_arguments(find_table(library, version), version);
        check_foreign_values(find_table(library, version), version);
        check_late_calls(find_table(library, version), version);
    }
    check_fork(library);
    check_reopen(library, argv[1]);
    check(log_lines == 1, "one greeting in the whole life of the process");
    check(odd_log_lines == 0, "the greeting names the version, at level INFO, subsystem PROFILE");
    return EXIT_SUCCESS;
}
