/* A fake libmlx5.so.1: its devices are those with a name like mlx5_0, and it remembers which port it was asked for. */
#include <errno.h>
#include <infiniband/mlx5dv.h>
#include <stdbool.h>
#include <string.h>

_Thread_local uint16_t fake_port;
bool fake_refuses_ports;

bool mlx5dv_is_supported(struct ibv_device *device)
{
    return strncmp(device->name, "mlx5_", 5) == 0;
}

int mlx5dv_modify_qp_udp_sport(struct ibv_qp *qp, uint16_t port)
{
    (void)qp;
    fake_port = port;
    return fake_refuses_ports ? EOPNOTSUPP : 0;
}
