// Instructions of NVIDIA GPUs, from compute capability 8.0, that the kernels in this folder use. This file is placed in front of each of
// them. `tests/emulated/emulator.h` has the same functions in plain C++.


typedef unsigned int u32;
typedef unsigned long long u64;
#define DEVICE __device__ __forceinline__
#define KERNEL extern "C" __global__ void
// Blocks that a multiprocessor must be able to run at once. This limits registers.
#define BLOCKS(count) __launch_bounds__(THREADS, count)
#define SHARED __shared__ __align__(128)
#define THREADS 128
#define MINUS_INFINITY __int_as_float(0xff800000)

// Adds the product of 16 × 16 and 16 × 8 to sums of 16 × 8.
DEVICE void multiply(float sums[4], const u32 a[4], u32 b0, u32 b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

DEVICE u32 address_of(const void* shared) { return (u32)__cvta_generic_to_shared(shared); }

// Loads four matrices of 8 × 8 from shared memory. Lane i gives the address of row i % 8 of matrix i / 8.
DEVICE void load_matrices(u32 to[4], const void* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3]) : "r"(address_of(row)) : "memory");
}

DEVICE void load_transposed(u32 to[4], const void* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3]) : "r"(address_of(row)) : "memory");
}

// Starts a copy of 16 bytes to shared memory without waiting. Copies zeros if `is_there` is false.
DEVICE void copy_later(void* to, const void* from, bool is_there) {
    int bytes = is_there ? 16 : 0;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" : : "r"(address_of(to)), "l"(from), "r"(bytes) : "memory");
}

DEVICE void end_group() { asm volatile("cp.async.commit_group;" : : : "memory"); }

// Waits for all groups of copies except the last `N`.
template <int N> DEVICE void wait_for_groups() { asm volatile("cp.async.wait_group %0;" : : "n"(N) : "memory"); }

// Two numbers in bf16, rounded to nearest, the first in the lower half.
DEVICE u32 pack(float first, float second) {
    u32 both;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(second), "f"(first));
    return both;
}

DEVICE float exp2_of(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

DEVICE float shuffle_xor(float x, int mask) { return __shfl_xor_sync(0xffffffffu, x, mask); }
DEVICE float shuffle(float x, int lane) { return __shfl_sync(0xffffffffu, x, lane); }
DEVICE bool any_of_warp(bool x) { return __any_sync(0xffffffffu, x); }
DEVICE void synchronize() { __syncthreads(); }
DEVICE u32 thread_index() { return threadIdx.x; }
DEVICE u32 block_x() { return blockIdx.x; }
DEVICE u32 block_y() { return blockIdx.y; }
DEVICE u32 blocks_x() { return gridDim.x; }
DEVICE float log2_of(float x) { return log2f(x); }
DEVICE float tanh_of(float x) { return tanhf(x); }
