/* Whose ring file this is, as the environment tells it. The collector checks with the kernel what it can. */
#define _GNU_SOURCE

#include "plugin.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void copy_text(char *place, size_t size, const char *text)
{
    const size_t length = text == NULL ? 0 : strnlen(text, size - 1);

    memcpy(place, text == NULL ? "" : text, length);
    place[length] = '\0';
}

static const char *first_set(const char *const *names)
{
    for (; *names != NULL; names++) {
        const char *value = getenv(*names);

        if (value != NULL && value[0] != '\0')
            return value;
    }
    return NULL;
}

static int32_t first_number(const char *const *names, int32_t otherwise)
{
    const char *value = first_set(names);
    char *end;
    const long number = value == NULL ? -1 : strtol(value, &end, 10);

    return value != NULL && *end == '\0' && number >= 0 && number <= INT32_MAX ? (int32_t)number : otherwise;
}

void identity_fill(struct wire_header *header)
{
    static const char *const job[] = {"LOCKSTEP_JOB",   "SLURM_JOB_ID", "TORCHELASTIC_RUN_ID", "PBS_JOBID",
                                      "LSB_JOBID",    NULL};
    static const char *const rank[] = {"RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK", NULL};
    static const char *const size[] = {"WORLD_SIZE", "SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", NULL};
    static const char *const local[] = {"LOCAL_RANK", "SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK", NULL};
    static const char *const attempt[] = {"TORCHELASTIC_RESTART_COUNT", "SLURM_RESTART_COUNT", NULL};
    static const char *const host[] = {"LOCKSTEP_HOST", NULL};
    char hostname[80] = "";

    if (gethostname(hostname, sizeof hostname - 1) != 0)
        hostname[0] = '\0';
    copy_text(header->host, sizeof header->host, first_set(host) != NULL ? first_set(host) : hostname);
    copy_text(header->job, sizeof header->job, first_set(job));
    copy_text(header->visible_gpus, sizeof header->visible_gpus, getenv("CUDA_VISIBLE_DEVICES"));
    copy_text(header->plugin_version, sizeof header->plugin_version, LOCKSTEP_VERSION);
    header->world_rank = first_number(rank, -1);
    header->world_size = first_number(size, -1);
    header->local_rank = first_number(local, -1);
    header->attempt = (uint32_t)first_number(attempt, 0);
}
