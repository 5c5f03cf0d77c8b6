/* plan FILE: prints what the shim reads in a plan, an entry a line, or `damaged`. */
#include "shim.h"

#include <stdio.h>
#include <unistd.h>

static void print_address(bool is_there, const struct in6_addr *address)
{
    char text[64];
    size_t end = lockstep_put(text, sizeof text, 0, "*");
    if (is_there)
        end = lockstep_put_address(text, sizeof text, 0, address);
    printf("%.*s ", (int)end, text);
}

static bool print_entry(void *context, const struct lockstep_entry *entry)
{
    bool is_printed = *(bool *)context;
    if (!is_printed)
        return false;
    print_address(entry->has_source, &entry->source);
    print_address(true, &entry->destination);
    printf("%u %s", entry->dport, entry->is_asked ? "?" : "");
    for (size_t i = 0; i < entry->n_ports; i++)
        printf("%s%u", i ? "," : "", entry->ports[i]);
    printf("\n");
    return false;
}

/* Twice, as the shim does: nothing is printed of a file that turns out to be damaged at its end. */
static void print_plan(const char *path)
{
    struct lockstep_header header;
    bool is_printed = false;
    int fd = lockstep_open_plan(path);
    if (fd < 0 || !lockstep_scan_plan(fd, &header, print_entry, &is_printed)) {
        printf("damaged\n");
    } else {
        is_printed = true;
        printf("%llu %llu\n", (unsigned long long)header.generation, (unsigned long long)header.lease_end_s);
        lockstep_scan_plan(fd, &header, print_entry, &is_printed);
    }
    if (fd >= 0)
        close(fd);
}

int main(int count, char **paths)
{
    for (int i = 1; i < count; i++) {
        print_plan(paths[i]);
        printf("--\n");
    }
    return 0;
}
