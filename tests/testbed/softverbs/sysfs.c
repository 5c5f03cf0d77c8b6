/* A tree as the kernel keeps it below /sys/class/infiniband, for those who read counters: in the folder that
 * LOCKSTEP_SOFTVERBS_SYSFS names. A counter goes on where the last process of the same interface left it. */
#include "softverbs.h"

#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PATH_BYTES = 512, WORD_BYTES = 4 };

struct shown {
    const char *file; /* below ports/1 */
    size_t offset;    /* in soft_counters; NONE: always 0 */
    unsigned unit;
};

#define NONE SIZE_MAX
#define OF(field) offsetof(struct soft_counters, field)
static const struct shown SHOWN[] = {
    {"counters/port_xmit_data", OF(tx_bytes), WORD_BYTES}, /* in words, as InfiniBand counts */
    {"counters/port_rcv_data", OF(rx_bytes), WORD_BYTES},
    {"counters/port_xmit_packets", OF(tx_packets), 1},
    {"counters/port_rcv_packets", OF(rx_packets), 1},
    {"counters/port_xmit_discards", OF(discards), 1},
    {"counters/port_rcv_errors", NONE, 1},
    {"counters/port_xmit_constraint_errors", NONE, 1},
    {"counters/link_downed", NONE, 1},
    {"hw_counters/local_ack_timeout_err", OF(timeouts), 1},
    {"hw_counters/packet_seq_err", OF(packet_seq_err), 1},
    {"hw_counters/implied_nak_seq_err", NONE, 1},
    {"hw_counters/out_of_sequence", OF(out_of_sequence), 1},
    {"hw_counters/out_of_buffer", OF(rnr_nak_sent), 1},
    {"hw_counters/resp_remote_access_errors", OF(access_errors), 1},
};
enum { N_SHOWN = sizeof SHOWN / sizeof *SHOWN };
static uint64_t before[SOFT_DEVICES][N_SHOWN]; /* what the files said when we came */

const char *soft_sysfs(void)
{
    const char *folder = getenv("LOCKSTEP_SOFTVERBS_SYSFS");
    return folder && *folder ? folder : NULL;
}

static void path_of(const struct soft_device *device, const char *file, char path[PATH_BYTES])
{
    int length = snprintf(path, PATH_BYTES, "%s/sys/class/infiniband/%s/%s", soft_sysfs(), device->device.name, file);
    if (length < 0 || length >= PATH_BYTES)
        path[0] = '\0'; /* what does not fit is nowhere, rather than somewhere else */
}

static void make_folders(char *path)
{
    for (char *slash = strchr(path + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        mkdir(path, 0755);
        *slash = '/';
    }
}

/* A reader sees the old text or the new one: both fit into one write over the same bytes. */
static void write_file(const struct soft_device *device, const char *file, const char *format, ...)
{
    char path[PATH_BYTES], text[64];
    va_list values;
    va_start(values, format);
    int length = vsnprintf(text, sizeof text, format, values);
    va_end(values);
    path_of(device, file, path);
    int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
    if (fd < 0)
        return;
    if (write(fd, text, (size_t)length) == length && ftruncate(fd, length))
        unlink(path);
    close(fd);
}

static uint64_t read_number(const struct soft_device *device, const char *file)
{
    char path[PATH_BYTES], text[32] = "";
    path_of(device, file, path);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return 0;
    ssize_t got = read(fd, text, sizeof text - 1);
    close(fd);
    return got > 0 ? strtoull(text, NULL, 10) : 0;
}

void soft_write_state(struct soft_device *device)
{
    if (soft_sysfs() == NULL)
        return;
    write_file(device, "ports/1/state", device->is_up ? "4: ACTIVE\n" : "1: DOWN\n");
    write_file(device, "ports/1/phys_state", device->is_up ? "5: LinkUp\n" : "3: Disabled\n");
}

void soft_write_device(struct soft_device *device)
{
    char path[PATH_BYTES], interface[PATH_BYTES];
    if (soft_sysfs() == NULL)
        return;
    for (const char *const *folder = (const char *const[]){"ports/1/counters/", "ports/1/hw_counters/", "device/net/",
                                                           NULL};
         *folder; folder++) {
        path_of(device, *folder, path);
        make_folders(path);
    }
    snprintf(interface, sizeof interface, "device/net/%s", device->interface);
    path_of(device, interface, path);
    snprintf(interface, sizeof interface, "/sys/class/net/%s", device->interface);
    unlink(path);
    if (symlink(interface, path)) {
        /* the collector then knows no interface of this device */
    }
    write_file(device, "ports/1/link_layer", "Ethernet\n");
    write_file(device, "ports/1/rate", "100 Gb/sec (4X EDR)\n");
    soft_write_state(device);
    for (int i = 0; i < N_SHOWN; i++) {
        snprintf(path, sizeof path, "ports/1/%s", SHOWN[i].file);
        before[device->index][i] = read_number(device, path);
    }
    soft_write_counters(device);
}

void soft_write_counters(struct soft_device *device)
{
    char file[PATH_BYTES];
    if (soft_sysfs() == NULL)
        return;
    for (int i = 0; i < N_SHOWN; i++) {
        const char *counters = (const char *)&device->counters;
        uint64_t counted = 0;
        if (SHOWN[i].offset != NONE)
            memcpy(&counted, counters + SHOWN[i].offset, sizeof counted);
        snprintf(file, sizeof file, "ports/1/%s", SHOWN[i].file);
        write_file(device, file, "%llu\n", (unsigned long long)(before[device->index][i] + counted / SHOWN[i].unit));
    }
}
