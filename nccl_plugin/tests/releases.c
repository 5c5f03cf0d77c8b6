/* What is known of each NCCL release: which is not touched at all, and whose kernel times are asked for. */
#define _GNU_SOURCE

#include "harness.h"
#include "scenarios.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void check_kernel_channels(int release, bool asked_for)
{
    struct ringfile file = read_own_file();

    EQUAL(header_of(&file)->nccl_version, release);
    EQUAL(header_of(&file)->kernel_channels, asked_for);
    EQUAL(is_asked_for(ABI_KERNEL_CHANNEL), asked_for);
    close_file(&file);
}

static void open_with_release(int version, int release)
{
    nccl_release = release;
    const struct nccl nccl = load_plugin(version);
    open_comm(&nccl, COMM_ID, 0, 4); /* two ranks on each of two hosts */
}

static void play_release(int version, int release, bool asked_for)
{
    open_with_release(version, release);
    check_kernel_channels(release, asked_for);
}

static void play_2_27_7(int version) { play_release(version, 22707, false); }
static void play_2_28_9(int version) { play_release(version, 22809, true); }
static void play_2_30_7(int version) { play_release(version, 23007, true); }
static void play_2_31_2(int version) { play_release(version, 23102, false); }
static void play_2_32_3(int version) { play_release(version, 23203, true); }
static void play_of_the_future(int version) { play_release(version, 29900, false); }

/* All traffic goes over the network, but whose GPU comes late no transfer tells. */
static void play_one_rank_per_host(int version)
{
    nccl_release = 22809;
    const struct nccl nccl = load_plugin(version);
    open_comm(&nccl, COMM_ID, 0, 2);
    check_kernel_channels(22809, true);
}

/* 2.30.3 can crash with any profiler, so it is left alone. */
static void play_2_30_3(int version)
{
    open_with_release(version, 23003);
    EQUAL(nccl_mask, 0);
    EQUAL(log_lines(), 1);
    CHECK(is_logged("2.30.3"));
    EQUAL(count_files(), 0);
}

/* A version that nobody can tell: no kernel times, everything else. */
static void play_unknown(int version)
{
    open_with_release(version, -1);
    check_kernel_channels(0, false);
    CHECK(is_asked_for(ABI_PROXY_OP));
}

static void play_told(int version)
{
    setenv("LOCKSTEP_NCCL_VERSION", "2.28.9", 1);
    open_with_release(version, -1);
    check_kernel_channels(22809, true);
}

static void play_forced_on(int version)
{
    setenv("LOCKSTEP_KERNEL", "on", 1);
    open_with_release(version, 23102);
    check_kernel_channels(23102, true);
}

static void play_forced_off(int version)
{
    setenv("LOCKSTEP_KERNEL", "off", 1);
    open_with_release(version, 22809);
    check_kernel_channels(22809, false);
}

/* Built both with its symbols exported, as NCCL has them, and without: then nothing is known. */
static void play_called_by_this_program(int version)
{
    const bool exported = dlsym(RTLD_DEFAULT, "ncclGetVersion") != NULL;

    open_with_release(version, 22809);
    check_kernel_channels(exported ? 22809 : 0, exported);
}

/* --- called by a library, which the program loads for itself alone, as Python loads NCCL --- */

static void init_through(const char *library_name, const struct nccl *nccl)
{
    int (*init)(const struct lockstep_profiler *, void **, int *, lockstep_log_fn *) = NULL;
    char path[PATH_BYTES];
    void *context = NULL;

    const ssize_t length = readlink("/proc/self/exe", path, sizeof path - 32);
    CHECK(length > 0);
    path[length] = '\0';
    strcpy(strrchr(path, '/') + 1, library_name);
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    CHECK(library != NULL);
    *(void **)&init = dlsym(library, "fake_init");
    CHECK(init != NULL);
    EQUAL(init(nccl->table, &context, &nccl_mask, nccl_log), LOCKSTEP_SUCCESS);
    CHECK(context != NULL);
}

static void play_called_by_a_library(int version)
{
    nccl_release = 22809; /* what the program would say */
    const struct nccl nccl = load_plugin(version);

    init_through("libnccl.so.2", &nccl);
    check_kernel_channels(23007, true);
}

static void play_called_by_rccl(int version)
{
    const struct nccl nccl = load_plugin(version);

    nccl_mask = 0xffff;
    init_through("librccl.so.1", &nccl);
    EQUAL(nccl_mask, 0);
    CHECK(is_logged("RCCL"));
    EQUAL(count_files(), 0);
}

const struct scenario release_scenarios[] = {
    {"NCCL 2.27.7", play_2_27_7, 4, 4},
    {"NCCL 2.28.9", play_2_28_9, 5, 5},
    {"one rank per host", play_one_rank_per_host, 5, 5},
    {"NCCL 2.30.3", play_2_30_3, 6, 6},
    {"NCCL 2.30.7", play_2_30_7, 6, 6},
    {"NCCL 2.31.2", play_2_31_2, 7, 7},
    {"NCCL 2.32.3", play_2_32_3, 7, 7},
    {"an NCCL of the future", play_of_the_future, 7, 7},
    {"an NCCL that does not say", play_unknown, NEWEST_VERSION, 4},
    {"an NCCL that the environment names", play_told, 5, 5},
    {"kernel times forced on", play_forced_on, 7, 7},
    {"kernel times forced off", play_forced_off, 5, 5},
    {"called by this program", play_called_by_this_program, 5, 5},
    {"called by a library", play_called_by_a_library, 6, 6},
    {"called by RCCL", play_called_by_rccl, 6, 6},
    {NULL, NULL, 0, 0},
};
