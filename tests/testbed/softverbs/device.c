/* Devices: one for each network interface of the namespace that is up and has an IPv4 address, and what verbs tell of
 * it. LOCKSTEP_SOFTVERBS_GBPS is the speed it says it has. */
#include "posting.h"
#include "softverbs.h"

#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

enum { PACKET_OVERHEAD_BYTES = 20 + 8 + 36, WIDTH_4X = 2, WIDTH_1X = 1, SPEED_10 = 4, SPEED_25 = 32, LINK_UP = 5 };

pthread_mutex_t soft_lock = PTHREAD_MUTEX_INITIALIZER;
struct soft_context *soft_contexts;

static struct soft_device devices[SOFT_DEVICES];
static int n_devices = -1;

static bool ask_interface(const char *name, unsigned long question, struct ifreq *request)
{
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    memset(request, 0, sizeof *request);
    snprintf(request->ifr_name, sizeof request->ifr_name, "%s", name);
    bool is_told = fd >= 0 && ioctl(fd, question, request) == 0;
    if (fd >= 0)
        close(fd);
    return is_told;
}

static bool has_link(const char *interface)
{
    struct ifreq request;
    return ask_interface(interface, SIOCGIFFLAGS, &request) && request.ifr_flags & IFF_UP &&
           request.ifr_flags & IFF_RUNNING;
}

static void add_device(const char *interface, struct in_addr address)
{
    struct soft_device *made = &devices[n_devices];
    struct ifreq request;
    snprintf(made->interface, sizeof made->interface, "%s", interface);
    snprintf(made->device.name, sizeof made->device.name, "soft_%s", interface);
    snprintf(made->device.dev_name, sizeof made->device.dev_name, "uverbs%d", n_devices);
    made->device.node_type = IBV_NODE_CA;
    made->device.transport_type = IBV_TRANSPORT_IB;
    made->address = address;
    made->mtu = ask_interface(interface, SIOCGIFMTU, &request) ? request.ifr_mtu : 1500;
    made->is_up = has_link(interface);
    made->listener = -1;
    made->index = n_devices++;
    soft_write_device(made);
}

static bool is_listed(const char *interface)
{
    for (int i = 0; i < n_devices; i++)
        if (strcmp(devices[i].interface, interface) == 0)
            return true;
    return false;
}

/* Loopback counts where there is nothing else. */
static void find_devices(unsigned loopback)
{
    struct ifaddrs *all = NULL;
    if (getifaddrs(&all))
        return;
    for (struct ifaddrs *each = all; each && n_devices < SOFT_DEVICES; each = each->ifa_next) {
        bool is_wanted = each->ifa_addr && each->ifa_addr->sa_family == AF_INET && each->ifa_flags & IFF_UP &&
                         (each->ifa_flags & IFF_LOOPBACK) == loopback;
        if (is_wanted && !is_listed(each->ifa_name))
            add_device(each->ifa_name, ((struct sockaddr_in *)(void *)each->ifa_addr)->sin_addr);
    }
    freeifaddrs(all);
}

struct soft_device *soft_devices(int *count)
{
    if (n_devices < 0) {
        n_devices = 0;
        find_devices(0);
        if (n_devices == 0)
            find_devices(IFF_LOOPBACK);
    }
    *count = n_devices;
    return devices;
}

SOFT_EXPORT struct ibv_device **ibv_get_device_list(int *count)
{
    int found;
    pthread_mutex_lock(&soft_lock);
    struct soft_device *all = soft_devices(&found);
    pthread_mutex_unlock(&soft_lock);
    struct ibv_device **list = calloc((size_t)found + 1, sizeof *list);
    for (int i = 0; list && i < found; i++)
        list[i] = &all[i].device;
    if (count)
        *count = list ? found : 0;
    return list;
}

SOFT_EXPORT void ibv_free_device_list(struct ibv_device **list)
{
    free(list);
}

SOFT_EXPORT const char *ibv_get_device_name(struct ibv_device *device)
{
    return device->name;
}

SOFT_EXPORT __be64 ibv_get_device_guid(struct ibv_device *device)
{
    return htobe64(0x0200534f00000000u | ntohl(((struct soft_device *)device)->address.s_addr));
}

SOFT_EXPORT int ibv_get_device_index(struct ibv_device *device)
{
    return ((struct soft_device *)device)->index;
}

SOFT_EXPORT struct ibv_context *ibv_open_device(struct ibv_device *device)
{
    struct soft_context *made = calloc(1, sizeof *made);
    int ends[2];
    if (made == NULL || pipe(ends)) {
        free(made);
        return NULL;
    }
    fcntl(ends[0], F_SETFD, FD_CLOEXEC);
    fcntl(ends[1], F_SETFD, FD_CLOEXEC);
    made->device = (struct soft_device *)device;
    made->async_write = ends[1];
    made->context = (struct ibv_context){.device = device, .cmd_fd = -1, .async_fd = ends[0], .num_comp_vectors = 1};
    made->context.ops.poll_cq = soft_poll_cq;
    made->context.ops.req_notify_cq = soft_req_notify_cq;
    made->context.ops.post_send = soft_post_send;
    made->context.ops.post_recv = soft_post_recv;
    pthread_mutex_init(&made->context.mutex, NULL);
    pthread_mutex_lock(&soft_lock);
    bool is_running = soft_start();
    made->next = soft_contexts;
    soft_contexts = made;
    pthread_mutex_unlock(&soft_lock);
    return is_running ? &made->context : NULL;
}

SOFT_EXPORT int ibv_close_device(struct ibv_context *context)
{
    struct soft_context *gone = (struct soft_context *)context, **at = &soft_contexts;
    pthread_mutex_lock(&soft_lock);
    while (*at != gone)
        at = &(*at)->next;
    *at = gone->next;
    soft_write_counters(gone->device);
    pthread_mutex_unlock(&soft_lock);
    close(gone->async_write);
    close(context->async_fd);
    free(gone);
    return 0;
}

void soft_raise(struct soft_context *context, enum ibv_event_type type, void *element)
{
    struct ibv_async_event event = {.event_type = type};
    event.element.qp = element; /* a union of pointers, and of the number of a port */
    if (type == IBV_EVENT_PORT_ERR || type == IBV_EVENT_PORT_ACTIVE)
        event.element.port_num = 1;
    if (write(context->async_write, &event, sizeof event) < 0)
        return; /* nobody has read sixty thousand bytes of events */
}

void soft_watch_links(void)
{
    for (int i = 0; i < n_devices; i++) {
        struct soft_device *device = &devices[i];
        bool was_up = device->is_up;
        device->is_up = has_link(device->interface);
        if (device->is_up == was_up)
            continue;
        soft_write_state(device);
        for (struct soft_context *each = soft_contexts; each; each = each->next)
            if (each->device == device)
                soft_raise(each, device->is_up ? IBV_EVENT_PORT_ACTIVE : IBV_EVENT_PORT_ERR, NULL);
    }
}

SOFT_EXPORT int ibv_get_async_event(struct ibv_context *context, struct ibv_async_event *event)
{
    return read(context->async_fd, event, sizeof *event) == sizeof *event ? 0 : -1;
}

SOFT_EXPORT void ibv_ack_async_event(struct ibv_async_event *event)
{
    (void)event;
}

SOFT_EXPORT int ibv_fork_init(void)
{
    return 0;
}

SOFT_EXPORT int ibv_query_device(struct ibv_context *context, struct ibv_device_attr *attributes)
{
    __be64 guid = ibv_get_device_guid(context->device);
    *attributes = (struct ibv_device_attr){
        .fw_ver = "stand-in", .node_guid = guid, .sys_image_guid = guid, .max_mr_size = UINT64_MAX,
        .page_size_cap = 4096, .max_qp = SOFT_QUEUE_PAIRS - SOFT_FIRST_QPN, .max_qp_wr = 1 << 14,
        .max_sge = SOFT_SGES, .max_cq = 1 << 16, .max_cqe = 1 << 20, .max_mr = SOFT_REGIONS - 1, .max_pd = 1 << 16,
        .atomic_cap = IBV_ATOMIC_NONE, .phys_port_cnt = 1, .max_pkeys = 1};
    return 0;
}

static enum ibv_mtu mtu_of(int interface_bytes)
{
    enum ibv_mtu mtu = IBV_MTU_256;
    while (mtu < IBV_MTU_4096 && (256 << mtu) + PACKET_OVERHEAD_BYTES <= interface_bytes)
        mtu++;
    return mtu;
}

SOFT_EXPORT int ibv_query_port(struct ibv_context *context, uint8_t port, struct _compat_ibv_port_attr *told)
{
    struct ibv_port_attr *attributes = (struct ibv_port_attr *)told;
    const struct soft_device *device = ((struct soft_context *)context)->device;
    const char *gbps = getenv("LOCKSTEP_SOFTVERBS_GBPS");
    if (port != 1)
        return EINVAL;
    pthread_mutex_lock(&soft_lock);
    bool is_up = device->is_up;
    pthread_mutex_unlock(&soft_lock);
    memset(attributes, 0, offsetof(struct ibv_port_attr, port_cap_flags2)); /* as much as old programs have */
    attributes->state = is_up ? IBV_PORT_ACTIVE : IBV_PORT_DOWN;
    attributes->phys_state = is_up ? LINK_UP : 3;
    attributes->max_mtu = IBV_MTU_4096;
    attributes->active_mtu = mtu_of(device->mtu);
    attributes->gid_tbl_len = attributes->pkey_tbl_len = 1;
    attributes->max_msg_sz = 1u << 30;
    attributes->link_layer = IBV_LINK_LAYER_ETHERNET;
    attributes->active_width = gbps && strcmp(gbps, "10") == 0 ? WIDTH_1X : WIDTH_4X;
    attributes->active_speed = gbps && strcmp(gbps, "10") == 0 ? SPEED_10 : SPEED_25;
    return 0;
}

/* One entry: RoCE v2 with the interface's IPv4 address. */
SOFT_EXPORT int ibv_query_gid(struct ibv_context *context, uint8_t port, int index, union ibv_gid *gid)
{
    memset(gid, 0, sizeof *gid);
    if (port != 1 || index != 0)
        return -1;
    memset(&gid->raw[10], 0xff, 2);
    memcpy(&gid->raw[12], &((struct soft_context *)context)->device->address, 4);
    return 0;
}

SOFT_EXPORT int ibv_query_pkey(struct ibv_context *context, uint8_t port, int index, __be16 *pkey)
{
    (void)context, (void)port;
    *pkey = 0xffff;
    return index == 0 ? 0 : -1;
}
