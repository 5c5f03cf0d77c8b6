#include "providers.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { TEXT_BYTES = 512 };

/* Drivers of the network card below an RDMA device, from the kernel's sources (drivers/infiniband/hw): irdma sits on
 * ice, i40e and idpf, hns_roce on hns3. That mlx5 follows the label of a queue pair is not certain: mlx5.h. */
static const char *const DRIVERS[] = {"ice", "i40e", "idpf", "hns3", "mana", "ionic"};
/* Devices without hardware: the kernel's software RoCE, and the testbed's stand-in. */
static const char *const PREFIXES[] = {"rxe", "soft_"};
static atomic_flag has_said = ATOMIC_FLAG_INIT;

/* The last part of the link that names a device's driver; "none" where there is no such link. */
static const char *find_driver(const char *device, char text[TEXT_BYTES])
{
    char path[TEXT_BYTES];
    size_t at = lockstep_put(path, sizeof path - 1, 0, "/sys/class/infiniband/");
    at = lockstep_put(path, sizeof path - 1, at, device);
    at = lockstep_put(path, sizeof path - 1, at, "/device/driver");
    path[at] = '\0';
    ssize_t length = readlink(path, text, TEXT_BYTES - 1);
    if (length <= 0)
        return "none";
    text[length] = '\0';
    const char *slash = strrchr(text, '/');
    return slash ? slash + 1 : text;
}

/* Whether a list of words with commas between them has this one. */
static bool is_in_list(const char *list, const char *word)
{
    size_t length = strlen(word);
    for (const char *at = list; at && *at; at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL)
        if (strncmp(at, word, length) == 0 && (at[length] == ',' || at[length] == '\0'))
            return true;
    return false;
}

static void say_unknown(const char *device, const char *driver)
{
    char line[TEXT_BYTES];
    if (atomic_flag_test_and_set(&has_said))
        return;
    size_t at = lockstep_put(line, sizeof line, 0, "lockstep: queue pairs of ");
    at = lockstep_put(line, sizeof line, at, device);
    at = lockstep_put(line, sizeof line, at, " keep their own source ports: driver ");
    at = lockstep_put(line, sizeof line, at, driver);
    at = lockstep_put(line, sizeof line, at, " is not known to take them (LOCKSTEP_PATHS_DRIVERS)\n");
    if (write(STDERR_FILENO, line, at) < 0)
        return; /* nobody reads it */
}

bool lockstep_takes_labels(const char *device)
{
    char text[TEXT_BYTES];
    const char *driver = find_driver(device, text), *more = getenv("LOCKSTEP_PATHS_DRIVERS");
    for (size_t i = 0; i < sizeof PREFIXES / sizeof *PREFIXES; i++)
        if (strncmp(device, PREFIXES[i], strlen(PREFIXES[i])) == 0)
            return true;
    for (size_t i = 0; i < sizeof DRIVERS / sizeof *DRIVERS; i++)
        if (strcmp(driver, DRIVERS[i]) == 0)
            return true;
    if (more && is_in_list(more, driver))
        return true;
    say_unknown(device, driver);
    return false;
}
