/* Our own failures: no directory, no room, nonsense in the environment. Each means silence, and success to NCCL. */
#define _GNU_SOURCE

#include "harness.h"
#include "scenarios.h"

#include <fcntl.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { NOBODY = 65534 };

/* --- what silence is --- */

static void check_silence_of(const struct nccl *nccl)
{
    nccl_mask = 0xffff;
    const struct comm comm = open_comm(nccl, COMM_ID, 0, 2), other = open_comm(nccl, COMM_ID + 1, 0, 2);

    EQUAL(nccl_mask, 0);
    EQUAL(log_lines(), nccl->version < 4 ? 0 : 1);
    CHECK(nccl->version < 4 || is_logged("silent"));
    CHECK(comm.context != NULL); /* or NCCL would not call finalize */
    CHECK(start(&comm, &(struct event){.type = ABI_COLL, .func = "AllReduce"}) == NULL);
    CHECK(start(&comm, &(struct event){.type = ABI_PROXY_OP}) == NULL);
    stop(&comm, (void *)UINTPTR_MAX);
    record(&comm, (void *)UINTPTR_MAX, ABI_SEND_WAIT, 1);
    EQUAL(count_files(), 0);
    close_comm(&other);
    close_comm(&comm);
}

static void check_silence(int version)
{
    const struct nccl nccl = load_plugin(version);

    check_silence_of(&nccl);
}

/* --- the directory --- */

static void play_missing_directory(int version)
{
    setenv("LOCKSTEP_RING_DIR", "/nonexistent/rings", 1);
    check_silence(version);
}

static void play_file_as_directory(int version)
{
    setenv("LOCKSTEP_RING_DIR", "/dev/null", 1);
    check_silence(version);
}

static void play_endless_path(int version)
{
    char path[8192];

    memset(path, 'x', sizeof path);
    path[sizeof path - 1] = '\0';
    setenv("LOCKSTEP_RING_DIR", path, 1);
    check_silence(version);
}

/* Root may write everywhere, so it becomes somebody else first. */
static void play_unwritable_directory(int version)
{
    const struct nccl nccl = load_plugin(version);

    CHECK(chmod(getenv("LOCKSTEP_RING_DIR"), 0555) == 0);
    if (geteuid() == 0)
        CHECK(setresgid(NOBODY, NOBODY, NOBODY) == 0 && setresuid(NOBODY, NOBODY, NOBODY) == 0);
    prctl(PR_SET_DUMPABLE, 1, 0, 0, 0); /* or the leak check could not look at us */
    check_silence_of(&nccl);
}

/* --- room --- */

static void mount_small(const char *size)
{
    /* Mounts of our own, which go with us. */
    if (unshare(CLONE_NEWNS) != 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0
        || mount("tmpfs", getenv("LOCKSTEP_RING_DIR"), "tmpfs", 0, size) != 0)
        skip_scenario("mounting a file system that is too small takes root");
}

static void play_full_filesystem(int version)
{
    mount_small("size=2m");
    check_silence(version);
}

/* Rings of `mib` have at least so many records each. */
static void check_rings(int version, const char *mib, uint64_t records, uint64_t most_bytes)
{
    setenv("LOCKSTEP_RING_MIB", mib, 1);
    const struct nccl nccl = load_plugin(version);
    const struct comm comm = open_comm(&nccl, COMM_ID, 0, 2);

    run_all_reduce(&comm, 0);
    struct ringfile file = read_own_file();
    check_file(&file);
    CHECK(ring_records(&file) >= records);
    CHECK(file.size <= most_bytes);
    EQUAL(find_row(&file, COMM_ID, WIRE_ALL_REDUCE, -1)->done, 1);
    close_file(&file);
}

static void play_half_filesystem(int version)
{
    mount_small("size=20m");
    check_rings(version, "", 32000, 16 << 20);
}

/* `ulimit -f`: what is written beyond it costs the process a signal that ends it. */
static void play_file_size_limit(int version)
{
    const struct rlimit small = {.rlim_cur = 1 << 20, .rlim_max = RLIM_INFINITY};

    CHECK(setrlimit(RLIMIT_FSIZE, &small) == 0);
    check_silence(version);
}

static void play_no_descriptors(int version)
{
    const struct nccl nccl = load_plugin(version);
    const int next = open("/dev/null", O_RDONLY);
    struct rlimit before = {0};

    CHECK(next >= 0 && close(next) == 0 && getrlimit(RLIMIT_NOFILE, &before) == 0);
    struct rlimit none = before;
    none.rlim_cur = (rlim_t)next;
    CHECK(setrlimit(RLIMIT_NOFILE, &none) == 0);
    nccl_mask = 0xffff;
    open_comm(&nccl, COMM_ID, 0, 2);
    CHECK(setrlimit(RLIMIT_NOFILE, &before) == 0);
    EQUAL(nccl_mask, 0);
    check_silence_of(&nccl); /* it does not try again: half a job's file would be worth nothing */
}

/* --- somebody else's doing --- */

static volatile sig_atomic_t heard;
static sigjmp_buf back;

static void hear(int number)
{
    heard = number;
    siglongjmp(back, 1);
}

static void truncate_own_file(void)
{
    char path[PATH_BYTES + 64];
    struct ringfile file = read_own_file();

    snprintf(path, sizeof path, "%s/%u-%llu.ring", getenv("LOCKSTEP_RING_DIR"), header_of(&file)->pid,
             (unsigned long long)header_of(&file)->created_ns);
    close_file(&file);
    CHECK(truncate(path, 0) == 0);
}

/* A file that root truncates: the job goes on, and what was its own handler of such faults still is. */
static void play_truncated_file(int version)
{
    char *page;
    FILE *empty = tmpfile();

    CHECK(empty != NULL && signal(SIGBUS, hear) != SIG_ERR);
    const struct nccl nccl = load_plugin(version);
    const struct comm comm = open_comm(&nccl, COMM_ID, 0, 2);
    void *open = begin_transfer(&comm, enqueue_all_reduce(&comm, 0), 1, 0, 1, true);

    truncate_own_file();
    stop(&comm, open);
    for (uint64_t seq = 1; seq < 100; seq++)
        run_all_reduce(&comm, seq);
    CHECK(enqueue_all_reduce(&comm, 100) == NULL); /* silent */
    EQUAL(heard, 0);
    page = mmap(NULL, 4096, PROT_READ, MAP_PRIVATE, fileno(empty), 0);
    CHECK(page != MAP_FAILED);
    if (sigsetjmp(back, 1) == 0)
        CHECK(*(volatile char *)page != 0 && false);
    EQUAL(heard, SIGBUS);
    fclose(empty);
    close_comm(&comm);
}

static void truncate_foreign(void)
{
    FILE *empty = tmpfile();
    volatile char *page = mmap(NULL, 4096, PROT_READ, MAP_PRIVATE, fileno(empty), 0);

    _exit(*page);
}

/* What is not ours ends the process as it would without us. */
static void play_foreign_fault(int version)
{
    int status;

    signal(SIGBUS, SIG_DFL); /* a sanitizer has a handler of its own */
    const struct nccl nccl = load_plugin(version);
    open_comm(&nccl, COMM_ID, 0, 2);
    for (int sent = 0; sent < 2; sent++) {
        const pid_t child = fork();

        if (child == 0 && sent)
            raise(SIGBUS);
        if (child == 0)
            truncate_foreign();
        CHECK(waitpid(child, &status, 0) == child && WIFSIGNALED(status) && WTERMSIG(status) == SIGBUS);
    }
}

/* --- the environment --- */

static const struct {
    const char *name, *value;
} nonsense[] = {
    {"LOCKSTEP_DETAIL", "everything"},  {"LOCKSTEP_DETAIL", "STEPS"},        {"LOCKSTEP_SAMPLE", "2"},
    {"LOCKSTEP_SAMPLE", "-0.1"},        {"LOCKSTEP_SAMPLE", "half"},         {"LOCKSTEP_SAMPLE", "nan"},
    {"LOCKSTEP_SAMPLE", "0.5x"},        {"LOCKSTEP_SAMPLE", "1e400"},        {"LOCKSTEP_BUDGET", "-1"},
    {"LOCKSTEP_BUDGET", "101"},         {"LOCKSTEP_BUDGET", "0.5%"},         {"LOCKSTEP_BUDGET", "inf"},
    {"LOCKSTEP_RING_MIB", "0"},         {"LOCKSTEP_RING_MIB", "-16"},        {"LOCKSTEP_RING_MIB", "1000000"},
    {"LOCKSTEP_RING_MIB", "sixteen"},   {"LOCKSTEP_RING_MIB", " "},          {"LOCKSTEP_KERNEL", "yes"},
    {"LOCKSTEP_NCCL_VERSION", "2"},     {"LOCKSTEP_NCCL_VERSION", "2.28"},   {"LOCKSTEP_NCCL_VERSION", "2.28.9.1"},
    {"LOCKSTEP_NCCL_VERSION", "-1.2.3"}, {"LOCKSTEP_NCCL_VERSION", "latest"}, {"LOCKSTEP_NCCL_VERSION", "2.28.999"},
};

/* One process each would be slow; the plugin reads its environment once per process, so a fork gives each its own. */
static void in_a_child(void (*play)(int version), int version)
{
    fflush(stdout);
    const pid_t child = fork();
    int status = -1;

    if (child == 0) {
        play(version);
        _exit(EXIT_SUCCESS);
    }
    CHECK(child > 0 && waitpid(child, &status, 0) == child);
    EQUAL(status, 0);
}

static void play_nonsense(int version)
{
    for (size_t i = 0; i < sizeof nonsense / sizeof *nonsense; i++) {
        const char *usual = getenv(nonsense[i].name);
        char kept[16];

        snprintf(kept, sizeof kept, "%s", usual == NULL ? "" : usual);
        setenv(nonsense[i].name, nonsense[i].value, 1);
        in_a_child(check_silence, version);
        setenv(nonsense[i].name, kept, 1); /* empty is as good as unset */
    }
}

static void check_defaults(int version)
{
    const struct nccl nccl = load_plugin(version);
    const struct comm comm = open_comm(&nccl, COMM_ID, 0, 2);

    run_all_reduce(&comm, 0);
    struct ringfile file = read_own_file();
    check_file(&file);
    EQUAL(status_of(&file)->level, WIRE_STEPS);
    EQUAL(status_of(&file)->share, 655); /* 1 % of 65,536 */
    EQUAL(status_of(&file)->budget_ppm, 5000);
    CHECK(file.size > 63 << 20 && file.size <= 64 << 20);
    close_file(&file);
}

/* An empty variable is an unset one. */
static void play_empty_variables(int version)
{
    static const char *const names[] = {"LOCKSTEP_DETAIL", "LOCKSTEP_SAMPLE", "LOCKSTEP_BUDGET", "LOCKSTEP_RING_MIB",
                                        "LOCKSTEP_KERNEL", "LOCKSTEP_NCCL_VERSION", "LOCKSTEP_HOST", "LOCKSTEP_JOB"};

    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        setenv(names[i], "", 1);
    check_defaults(version);
}

/* Names that do not fit are cut, whatever bytes they are made of. */
static void play_endless_names(int version)
{
    char name[4096];

    memset(name, '\xff', sizeof name);
    name[sizeof name - 1] = '\0';
    setenv("LOCKSTEP_HOST", name, 1);
    setenv("LOCKSTEP_JOB", name, 1);
    setenv("CUDA_VISIBLE_DEVICES", name, 1);
    setenv("RANK", "99999999999999999999", 1);
    setenv("WORLD_SIZE", "-4", 1);
    setenv("LOCAL_RANK", "one", 1);
    const struct nccl nccl = load_plugin(version);
    open_comm(&nccl, COMM_ID, 0, 2);
    struct ringfile file = read_own_file();
    check_file(&file);
    EQUAL(strlen(header_of(&file)->host), sizeof header_of(&file)->host - 1);
    EQUAL(strlen(header_of(&file)->job), sizeof header_of(&file)->job - 1);
    EQUAL(strlen(header_of(&file)->visible_gpus), sizeof header_of(&file)->visible_gpus - 1);
    EQUAL(header_of(&file)->world_rank, -1);
    EQUAL(header_of(&file)->world_size, -1);
    EQUAL(header_of(&file)->local_rank, -1);
    close_file(&file);
}

static void play_small_file(int version) { check_rings(version, "4", WIRE_RING_RECORDS, 4 << 20); }

/* All three records of each of 1,600 operations a second on one channel, for 30 s and more. */
static void play_usual_file(int version) { check_rings(version, "", 34 * 1600 * 3, 64 << 20); }

const struct scenario failure_scenarios[] = {
    {"the directory is missing", play_missing_directory, NEWEST_VERSION, OLDEST_VERSION},
    {"the directory is a file", play_file_as_directory, NEWEST_VERSION, NEWEST_VERSION},
    {"the directory's name is endless", play_endless_path, NEWEST_VERSION, NEWEST_VERSION},
    {"the directory cannot be written", play_unwritable_directory, NEWEST_VERSION, NEWEST_VERSION},
    {"the file system is full", play_full_filesystem, NEWEST_VERSION, NEWEST_VERSION},
    {"files may not grow", play_file_size_limit, NEWEST_VERSION, NEWEST_VERSION},
    {"no descriptor is left", play_no_descriptors, NEWEST_VERSION, NEWEST_VERSION},
    {"the file is truncated", play_truncated_file, NEWEST_VERSION, OLDEST_VERSION},
    {"a fault that is not ours", play_foreign_fault, NEWEST_VERSION, NEWEST_VERSION},
    {"nonsense in variables", play_nonsense, NEWEST_VERSION, NEWEST_VERSION},
    {"empty variables", play_empty_variables, NEWEST_VERSION, NEWEST_VERSION},
    {"endless names", play_endless_names, NEWEST_VERSION, NEWEST_VERSION},
    {"a smaller file", play_small_file, NEWEST_VERSION, NEWEST_VERSION},
    {"a file of the usual size", play_usual_file, NEWEST_VERSION, NEWEST_VERSION},
    {"room for a smaller file only", play_half_filesystem, NEWEST_VERSION, NEWEST_VERSION},
    {NULL, NULL, 0, 0},
};
