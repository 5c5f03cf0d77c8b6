/* Plays a program against the shim, which is linked into it: what threads, forks, odd calls and broken files do. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#define EXPECT(holds)                                                           \
    do {                                                                        \
        if (!(holds)) {                                                         \
            fprintf(stderr, "%s:%d: does not hold: %s\n", __FILE__, __LINE__, #holds); \
            exit(1);                                                            \
        }                                                                       \
    } while (0)

enum { THREADS = 8, ROUNDS = 40, DAMAGES = 1500, CHILDREN = 4 };

static char folder[64], plan[96];
static uint16_t server_port;
static uint64_t generation;

static int listen_here(uint16_t *port)
{
    struct sockaddr_in here = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof here;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    EXPECT(bind(fd, (struct sockaddr *)&here, sizeof here) == 0 && listen(fd, 4096) == 0);
    EXPECT(getsockname(fd, (struct sockaddr *)&here, &length) == 0);
    *port = ntohs(here.sin_port);
    return fd;
}

static void write_file(const char *text, size_t length)
{
    char new[128];
    snprintf(new, sizeof new, "%s.new", plan);
    int fd = open(new, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    EXPECT(fd >= 0 && write(fd, text, length) == (ssize_t)length);
    close(fd);
    EXPECT(rename(new, plan) == 0);
}

static size_t compose(char *text, size_t size, unsigned first, unsigned count)
{
    int at = snprintf(text, size, "lockstep-paths 1 %llu 0\n* 127.0.0.1 %u ", (unsigned long long)++generation,
                      server_port);
    for (unsigned i = 0; i < count; i++)
        at += snprintf(text + at, size - (size_t)at, "%s%u", i ? "," : "", first + i);
    return (size_t)at + (size_t)snprintf(text + at, size - (size_t)at, "\nend 1\n");
}

static void plan_ports(unsigned first, unsigned count)
{
    char text[2048];
    write_file(text, compose(text, sizeof text, first, count));
}

static int try_connect(int fd, uint16_t port)
{
    struct sockaddr_in there = {
        .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    return connect(fd, (struct sockaddr *)&there, sizeof there);
}

static unsigned local_port(int fd)
{
    struct sockaddr_in here;
    socklen_t length = sizeof here;
    EXPECT(getsockname(fd, (struct sockaddr *)&here, &length) == 0);
    return ntohs(here.sin_port);
}

/* Ends without TIME_WAIT, so that the next round may have the port. */
static void reset(int fd)
{
    struct linger at_once = {.l_onoff = 1};
    setsockopt(fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
    close(fd);
}

static void play_errors_and_flags(void)
{
    uint16_t nobody;
    plan_ports(21000, 8);
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    errno = EXDEV;
    EXPECT(try_connect(fd, server_port) == 0 && errno == EXDEV);
    EXPECT(local_port(fd) >= 21000 && local_port(fd) < 21008);
    EXPECT(try_connect(fd, server_port) == -1 && errno == EISCONN);
    reset(fd);
    close(listen_here(&nobody));
    server_port ^= nobody, nobody ^= server_port, server_port ^= nobody;
    plan_ports(21000, 8);
    fd = socket(AF_INET, SOCK_STREAM, 0);
    EXPECT(try_connect(fd, server_port) == -1 && errno == ECONNREFUSED && local_port(fd) >= 21000);
    EXPECT(try_connect(fd, server_port) == -1 && errno == ECONNREFUSED); /* again, on the socket that is bound now */
    close(fd);
    server_port = nobody;
}

static void play_non_blocking(void)
{
    plan_ports(21000, 8);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    struct pollfd waiting = {.fd = fd, .events = POLLOUT};
    int result = try_connect(fd, server_port);
    EXPECT(result == 0 || errno == EINPROGRESS);
    EXPECT(poll(&waiting, 1, 5000) == 1 && local_port(fd) >= 21000 && local_port(fd) < 21008);
    reset(fd);
}

static void play_odd_calls(void)
{
    struct sockaddr_in there = {.sin_family = AF_INET};
    struct sockaddr_in6 new = {.sin6_family = AF_INET6, .sin6_addr = IN6ADDR_LOOPBACK_INIT, .sin6_port = htons(9)};
    struct sockaddr_un local = {.sun_family = AF_UNIX, .sun_path = "/nowhere"};
    int fd = socket(AF_INET, SOCK_STREAM, 0), datagrams = socket(AF_INET, SOCK_DGRAM, 0);
    EXPECT(connect(-1, (struct sockaddr *)&there, sizeof there) == -1 && errno == EBADF);
    EXPECT(connect(fd, (struct sockaddr *)&there, 3) == -1 && errno == EINVAL);
    EXPECT(connect(fd, NULL, sizeof there) == -1 && errno == EFAULT);
    EXPECT(connect(fd, (struct sockaddr *)&new, sizeof new) == -1);
    EXPECT(connect(fd, (struct sockaddr *)&local, sizeof local) == -1);
    EXPECT(try_connect(datagrams, server_port) == 0);
    EXPECT(local_port(datagrams) < 21000 || local_port(datagrams) > 21008);
    close(fd);
    close(datagrams);
}

static void play_damaged_files(unsigned seed)
{
    char text[2048];
    size_t length = compose(text, sizeof text, 21000, 100);
    for (int i = 0; i < DAMAGES; i++) {
        char broken[sizeof text];
        memcpy(broken, text, length);
        size_t kept = rand_r(&seed) % 4 ? length : (size_t)rand_r(&seed) % length;
        for (int hits = rand_r(&seed) % 4; hits >= 0; hits--)
            broken[(size_t)rand_r(&seed) % length] = "0 9\n?*,.:\0e\xff"[rand_r(&seed) % 12];
        write_file(broken, kept);
        int fd = socket(AF_INET, SOCK_STREAM, 0);
        EXPECT(try_connect(fd, server_port) == 0);
        reset(fd);
    }
}

static void *connect_often(void *unused)
{
    (void)unused;
    for (int i = 0; i < ROUNDS; i++) {
        int fd = socket(AF_INET, SOCK_STREAM, 0);
        EXPECT(try_connect(fd, server_port) == 0);
        reset(fd);
    }
    return NULL;
}

static void *fork_often(void *unused)
{
    (void)unused;
    for (int i = 0; i < CHILDREN; i++) {
        int status = 1;
        pid_t child = fork();
        if (child == 0) {
            connect_often(NULL);
            _exit(0);
        }
        EXPECT(waitpid(child, &status, 0) == child && status == 0);
    }
    return NULL;
}

static void play_threads_and_forks(void)
{
    pthread_t threads[THREADS + 1];
    generation += 1000000; /* damaged files may have named a later plan than ours, and shall not again */
    plan_ports(22000, 64);
    for (int i = 0; i < THREADS; i++)
        EXPECT(pthread_create(&threads[i], NULL, connect_often, NULL) == 0);
    EXPECT(pthread_create(&threads[THREADS], NULL, fork_often, NULL) == 0);
    for (int i = 0; i < ROUNDS; i++)
        plan_ports(22000 + (unsigned)i, 64);
    for (int i = 0; i <= THREADS; i++)
        pthread_join(threads[i], NULL);
}

static void begin(const char *self)
{
    EXPECT(mkdtemp(strcpy(folder, "/tmp/lockstep-paths.XXXXXX")) != NULL);
    snprintf(plan, sizeof plan, "%s/plan", folder);
    setenv("LOCKSTEP_PATHS_FILE", plan, 1);
    setenv("LOCKSTEP_PATHS_REPORT_DIR", folder, 1);
    setenv("DRIVER_FOLDER", folder, 1);
    execl(self, self, (char *)NULL); /* the shim reads its settings when it is loaded */
}

int main(int count, char **arguments)
{
    (void)count;
    if (getenv("DRIVER_FOLDER") == NULL)
        begin(arguments[0]);
    snprintf(folder, sizeof folder, "%s", getenv("DRIVER_FOLDER"));
    snprintf(plan, sizeof plan, "%s/plan", folder);
    int server = listen_here(&server_port);
    play_errors_and_flags();
    play_non_blocking();
    play_odd_calls();
    play_threads_and_forks();
    play_damaged_files(1);
    close(server);
    char command[128];
    snprintf(command, sizeof command, "rm -r %s", folder);
    return system(command) != 0;
}
