/* A directory for ring files that nobody else uses. */
#define _POSIX_C_SOURCE 200809L

#include "harness.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* Shared memory, as in production, where it may be written; else the usual place for what is temporary. */
void make_directory(char *path)
{
    const char *given = getenv("TMPDIR");

    snprintf(path, PATH_BYTES, "%s/lockstep-test-XXXXXX",
             access("/dev/shm", W_OK) == 0 ? "/dev/shm" : given != NULL ? given : "/tmp");
    CHECK(mkdtemp(path) != NULL);
}

void remove_directory(const char *path)
{
    DIR *listing = opendir(path);
    char inside[PATH_BYTES + 300];

    for (struct dirent *entry; listing != NULL && (entry = readdir(listing)) != NULL;) {
        snprintf(inside, sizeof inside, "%s/%s", path, entry->d_name);
        unlink(inside);
    }
    if (listing != NULL)
        closedir(listing);
    CHECK(rmdir(path) == 0);
}
