/* What the environment asks for. A value that cannot be read means silence, not a guess. */
#include "plugin.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool is_unset(const char *value) { return value == NULL || value[0] == '\0'; }

static bool read_level(struct options *options)
{
    static const char *const names[] = {"off", "operations", "transfers", "steps", "trace"};
    const char *value = getenv("LOCKSTEP_DETAIL");

    if (is_unset(value))
        return true;
    for (uint32_t level = WIRE_OFF; level <= WIRE_TRACE; level++)
        if (strcmp(value, names[level]) == 0) {
            options->level = level;
            return true;
        }
    return false;
}

/* Digits with at most one point; the job's locale, which strtod would obey, does not matter here. */
static bool parse_decimal(const char *text, double *number)
{
    double scale = 0;

    *number = 0;
    for (; *text != '\0'; text++) {
        if (*text == '.' && scale == 0) {
            scale = 1;
            continue;
        }
        if (*text < '0' || *text > '9')
            return false;
        *number = *number * 10 + (*text - '0');
        scale *= 10;
    }
    *number /= scale > 0 ? scale : 1;
    return true;
}

static bool read_number(const char *name, double least, double most, double *number)
{
    const char *value = getenv(name);

    return is_unset(value) || (parse_decimal(value, number) && *number >= least && *number <= most);
}

static bool read_kernel(struct options *options)
{
    const char *value = getenv("LOCKSTEP_KERNEL");

    if (is_unset(value) || strcmp(value, "auto") == 0)
        options->kernel_channels = -1;
    else if (strcmp(value, "on") == 0 || strcmp(value, "off") == 0)
        options->kernel_channels = strcmp(value, "on") == 0;
    else
        return false;
    return true;
}

static bool read_version(struct options *options)
{
    const char *value = getenv("LOCKSTEP_NCCL_VERSION");
    unsigned major, minor, patch;
    char rest;

    if (is_unset(value))
        return true;
    if (sscanf(value, "%u.%u.%u%c", &major, &minor, &patch, &rest) != 3 || major > 99 || minor > 99 || patch > 99)
        return false;
    options->nccl_version = major * 10000 + minor * 100 + patch;
    return true;
}

bool options_read(struct options *options, const char **problem)
{
    double share = 0.01, budget = 0.5, mib = 64;

    *problem = NULL;
    *options = (struct options){.level = WIRE_STEPS, .kernel_channels = -1};
    if (!read_level(options))
        *problem = "LOCKSTEP_DETAIL is not off, operations, transfers, steps or trace";
    else if (!read_number("LOCKSTEP_SAMPLE", 0, 1, &share))
        *problem = "LOCKSTEP_SAMPLE is not between 0 and 1";
    else if (!read_number("LOCKSTEP_BUDGET", 0, 100, &budget))
        *problem = "LOCKSTEP_BUDGET is not a percentage";
    else if (!read_number("LOCKSTEP_RING_MIB", LEAST_MIB, 256, &mib))
        *problem = "LOCKSTEP_RING_MIB is not between 4 and 256";
    else if (!read_kernel(options))
        *problem = "LOCKSTEP_KERNEL is not auto, on or off";
    else if (!read_version(options))
        *problem = "LOCKSTEP_NCCL_VERSION is not like 2.28.9";
    options->share = (uint32_t)(share * FULL_SHARE);
    options->budget_ppm = (uint32_t)(budget * 10000);
    options->ring_mib = (uint32_t)mib;
    return *problem == NULL;
}
