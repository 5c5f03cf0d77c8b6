/* Plays a verbs program against the shim, which is linked into it, with a fake libibverbs.so.1 and libmlx5.so.1
 * of a few lines (fake_verbs.c, fake_mlx5.c) behind it: what plans, broken plans, odd drivers and threads do to a queue pair on its way to RTR. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define EXPECT(holds)                                                           \
    do {                                                                        \
        if (!(holds)) {                                                         \
            fprintf(stderr, "%s:%d: does not hold: %s\n", __FILE__, __LINE__, #holds); \
            exit(1);                                                            \
        }                                                                       \
    } while (0)

enum { THREADS = 8, ROUNDS = 200, DAMAGES = 800, ROCE = IBV_QP_STATE | IBV_QP_AV };

/* What the fake was called with last, by thread, and what it shall answer. */
extern _Thread_local uint32_t fake_label;
extern _Thread_local unsigned fake_calls, fake_access;
extern _Thread_local uint16_t fake_port;
extern bool fake_refuses_labels, fake_refuses_ports;

static char folder[64], plan[96];
static struct ibv_device device = {.name = "soft_fake"};
static struct ibv_context context = {.device = &device};

static void write_plan(const char *text, size_t length)
{
    char new[128];
    snprintf(new, sizeof new, "%s.new", plan);
    int fd = open(new, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    EXPECT(fd >= 0 && write(fd, text, length) == (ssize_t)length);
    close(fd);
    EXPECT(rename(new, plan) == 0);
}

static size_t compose(char *text, size_t size, unsigned generation)
{
    return (size_t)snprintf(text, size,
                            "lockstep-queue-pairs 1 %u 0 advisory\n10.0.0.1 10.0.0.2 50000 1 a/0\n"
                            "10.0.0.9 10.0.0.2 60000 1 b/0\n10.0.0.1 10.0.0.2 49152 0.5 a/1\nend 3\n",
                            generation);
}

static void plan_generation(unsigned generation)
{
    char text[512];
    write_plan(text, compose(text, sizeof text, generation));
}

static struct ibv_qp_attr on_its_way(const char *destination)
{
    struct ibv_qp_attr attributes = {.qp_state = IBV_QPS_RTR, .ah_attr = {.is_global = 1, .port_num = 1}};
    memset(&attributes.ah_attr.grh.dgid.raw[10], 0xff, 2);
    EXPECT(inet_pton(AF_INET, destination, &attributes.ah_attr.grh.dgid.raw[12]) == 1);
    return attributes;
}

/* Takes one queue pair to RTR; returns the label that it got. The program's own structure stays as it was. */
static uint32_t label_to(const char *destination, int mask)
{
    struct ibv_qp pair = {.context = &context};
    struct ibv_qp_attr attributes = on_its_way(destination);
    fake_label = 0xfffff;
    errno = EXDEV;
    EXPECT(ibv_modify_qp(&pair, &attributes, mask) == 0 && errno == EXDEV);
    EXPECT(attributes.ah_attr.grh.flow_label == 0);
    return fake_label;
}

static unsigned count_reports(const char *outcome)
{
    char path[128], line[256];
    unsigned count = 0;
    snprintf(path, sizeof path, "%s/%d", folder, (int)getpid());
    FILE *file = fopen(path, "r");
    while (file && fgets(line, sizeof line, file))
        count += strstr(line, outcome) != NULL;
    if (file)
        fclose(file);
    return count;
}

static void play_order(void)
{
    EXPECT(label_to("10.0.0.2", ROCE) == 0); /* no plan */
    plan_generation(5);
    EXPECT(label_to("10.0.0.2", ROCE) == (50000 & 0x3fff));
    EXPECT(label_to("10.0.0.3", ROCE) == 0);
    EXPECT(label_to("10.0.0.2", IBV_QP_STATE) == 0); /* without an address: not what we are for */
    EXPECT(label_to("10.0.0.2", ROCE) == 0x4001);    /* port 49152, for which the plain label would be 0 */
    EXPECT(label_to("10.0.0.2", ROCE) == (50000 & 0x3fff));
    EXPECT(count_reports(" 10.0.0.2 4791 5 enforced\n") == 3 && count_reports("\n") == 3);
}

static void play_those_left_alone(void)
{
    struct ibv_qp pair = {.context = &context};
    struct ibv_qp_attr chosen = on_its_way("10.0.0.2");
    chosen.ah_attr.grh.flow_label = 77;
    EXPECT(ibv_modify_qp(&pair, &chosen, ROCE) == 0 && fake_label == 77 && count_reports("bound\n") == 1);
    fake_access = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC;
    EXPECT(label_to("10.0.0.2", ROCE) == 0);
    fake_access = 0;
    plan_generation(4);
    EXPECT(label_to("10.0.0.2", ROCE) == 0 && count_reports("stale\n") == 1);
    plan_generation(6);
    strcpy(device.name, "other_0");
    EXPECT(label_to("10.0.0.2", ROCE) == 0 && label_to("10.0.0.2", ROCE) == 0);
    EXPECT(count_reports("unsupported\n") == 2);
    setenv("LOCKSTEP_PATHS_DRIVERS", "abc,none", 1);
    EXPECT(label_to("10.0.0.2", ROCE) != 0);
    strcpy(device.name, "soft_fake");
}

/* A driver that wants no label gets the call that the program made. */
static void play_refusal(void)
{
    fake_refuses_labels = true;
    unsigned before = fake_calls;
    EXPECT(label_to("10.0.0.2", ROCE) == 0 && fake_calls == before + 2);
    EXPECT(count_reports("unsupported\n") == 3);
    fake_refuses_labels = false;
}

/* mlx5 is asked for the port itself when the queue pair begins to send, and what it answers is reported. */
static void play_mlx5(void)
{
    struct ibv_qp pair = {.context = &context};
    struct ibv_qp_attr way = on_its_way("10.0.0.2"), sending = {.qp_state = IBV_QPS_RTS};
    strcpy(device.name, "mlx5_0");
    for (int refusals = 0; refusals < 2; refusals++) {
        unsigned enforced = count_reports("enforced\n"), unsupported = count_reports("unsupported\n");
        fake_refuses_ports = refusals;
        fake_port = 0;
        EXPECT(ibv_modify_qp(&pair, &way, ROCE) == 0 && fake_label != 0 && fake_port == 0);
        EXPECT(count_reports("enforced\n") == enforced);
        EXPECT(ibv_modify_qp(&pair, &sending, IBV_QP_STATE) == 0 && fake_port >= 49152);
        EXPECT(count_reports("enforced\n") == enforced + !refusals);
        EXPECT(count_reports("unsupported\n") == unsupported + (unsigned)refusals);
        fake_port = 0;
        EXPECT(ibv_modify_qp(&pair, &sending, IBV_QP_STATE) == 0 && fake_port == 0); /* once */
    }
    strcpy(device.name, "soft_fake");
}

static void play_damaged_files(unsigned seed)
{
    char text[512], broken[512];
    size_t length = compose(text, sizeof text, 6);
    for (int i = 0; i < DAMAGES; i++) {
        memcpy(broken, text, length);
        size_t kept = rand_r(&seed) % 4 ? length : (size_t)rand_r(&seed) % length;
        for (int hits = rand_r(&seed) % 4; hits >= 0; hits--)
            broken[(size_t)rand_r(&seed) % length] = "0 9\n?*,.:\0e\xff"[rand_r(&seed) % 12];
        write_plan(broken, kept);
        uint32_t label = label_to("10.0.0.2", ROCE);
        EXPECT(label <= 0x4001);
    }
    EXPECT(count_reports("damaged\n") > 0);
}

static void *modify_often(void *unused)
{
    (void)unused;
    for (int i = 0; i < ROUNDS; i++)
        label_to("10.0.0.2", ROCE);
    return NULL;
}

static void play_threads(void)
{
    pthread_t threads[THREADS];
    plan_generation(4000000000u);
    for (int i = 0; i < THREADS; i++)
        EXPECT(pthread_create(&threads[i], NULL, modify_often, NULL) == 0);
    for (unsigned i = 0; i < ROUNDS; i++)
        plan_generation(4000000001u + i);
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
}

static void begin(const char *self)
{
    char file[96];
    EXPECT(mkdtemp(strcpy(folder, "/tmp/lockstep-verbs.XXXXXX")) != NULL);
    snprintf(file, sizeof file, "%s/plan", folder);
    setenv("LOCKSTEP_PATHS_FILE", file, 1);
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
    snprintf(plan, sizeof plan, "%s/plan.queue-pairs", folder);
    play_order();
    play_those_left_alone();
    play_refusal();
    play_mlx5();
    play_damaged_files(1);
    play_threads();
    char command[128];
    snprintf(command, sizeof command, "rm -r %s", folder);
    return system(command) != 0;
}
