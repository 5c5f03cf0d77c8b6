/* Plays NCCL without a GPU: every scenario is a process that loads the plugin as NCCL does, calls it in right and in
 * hostile orders, and reads the ring file back.
 *
 * usage: driver PATH_OF_THE_PLUGIN [PART_OF_A_NAME]
 * Prints what failed, with a part of a name also what passed, and ends with 1 when something failed. The driver itself
 * never loads the plugin.
 */
#define _POSIX_C_SOURCE 200809L

#include "harness.h"
#include "scenarios.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>


#if defined(__SANITIZE_ADDRESS__) && !defined(__x86_64__)
enum { LEAKS_EVERY = 20 }; /* gcc's leak check walks 2^28 regions there, which takes 4 s a process */
#else
enum { LEAKS_EVERY = 1 };
#endif

static bool talkative;

static const struct scenario *const files[] = {
    normal_scenarios, kind_scenarios,    detail_scenarios,  waiting_scenarios,  hostile_scenarios, handle_scenarios,
    crowd_scenarios,  process_scenarios, control_scenarios, governor_scenarios, failure_scenarios, release_scenarios,
};

static const char *const foreign_variables[] = {
    "LOCKSTEP_HOST", "LOCKSTEP_JOB", "LOCKSTEP_DETAIL", "LOCKSTEP_KERNEL", "LOCKSTEP_NCCL_VERSION",
    "SLURM_JOB_ID",  "RANK",         "WORLD_SIZE",      "LOCAL_RANK",
};

static void live(const struct scenario *scenario, int version, const char *directory, bool looks_for_leaks)
{
    for (size_t i = 0; i < sizeof foreign_variables / sizeof *foreign_variables; i++)
        unsetenv(foreign_variables[i]);
    setenv("LOCKSTEP_RING_DIR", directory, 1);
    setenv("LOCKSTEP_SAMPLE", "1", 1);
    setenv("LOCKSTEP_RING_MIB", "6", 1); /* six rings, one of them shared, and quicker to touch than the usual 64 MiB */
    setenv("LOCKSTEP_BUDGET", "0", 1); /* what is seen shall not depend on how fast this machine is */
    alarm(HANGS_AFTER_S);
    scenario->play(version);
    if (talkative)
        printf("ok: %s, v%d: %lu checks\n", scenario->name, version, checks_made());
    if (looks_for_leaks)
        exit(EXIT_SUCCESS); /* in here */
    fflush(NULL);
    _exit(EXIT_SUCCESS);
}

static bool passes(const struct scenario *scenario, int version, bool looks_for_leaks)
{
    char directory[PATH_BYTES];
    int status = -1;

    make_directory(directory);
    fflush(stdout);
    const pid_t child = fork();
    if (child == 0)
        live(scenario, version, directory, looks_for_leaks);
    const bool passed = child > 0 && waitpid(child, &status, 0) == child && status == 0;
    if (!passed)
        printf("FAILED: %s, v%d: status 0x%x\n", scenario->name, version, (unsigned)status);
    remove_directory(directory);
    return passed;
}

int main(int argc, char **argv)
{
    const char *wanted = argc == 3 ? argv[2] : "";
    int played = 0, failed = 0;

    if (argc != 2 && argc != 3) {
        fprintf(stderr, "usage: %s PATH_OF_THE_PLUGIN [PART_OF_A_NAME]\n", argv[0]);
        return 2;
    }
    setvbuf(stdout, NULL, _IOLBF, 0); /* a crash must not swallow the lines that say how far we came */
    plugin_path = argv[1];
    talkative = argc == 3;
    for (size_t i = 0; i < sizeof files / sizeof *files; i++)
        for (const struct scenario *scenario = files[i]; scenario->name != NULL; scenario++)
            for (int version = scenario->newest; version >= scenario->oldest; version--)
                if (strstr(scenario->name, wanted) != NULL) {
                    failed += !passes(scenario, version, played % LEAKS_EVERY == 0);
                    played++;
                }
    printf("%d of %d scenarios passed\n", played - failed, played);
    return failed == 0 && played > 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
