/* The one kernel of the rank program: it keeps the GPU busy for a while by the GPU's own clock. */
#include <cstdint>

static __device__ uint64_t gpu_ns()
{
    uint64_t now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    return now;
}

static __global__ void spin(uint64_t duration_ns)
{
    const uint64_t began = gpu_ns();
    while (gpu_ns() - began < duration_ns) {
    }
}

extern "C" void kernel_spin(uint64_t duration_ns, void *stream)
{
    spin<<<1, 1, 0, static_cast<cudaStream_t>(stream)>>>(duration_ns);
}
