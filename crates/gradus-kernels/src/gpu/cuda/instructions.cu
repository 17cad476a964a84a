// Instructions of NVIDIA GPUs, from compute capability 8.0, that the kernels in this folder use. This file is placed in front of each of
// them. `tests/emulated/emulator.h` has the same functions in plain C++.


typedef unsigned int u32;
typedef unsigned long long u64;
#define DEVICE __device__ __forceinline__
#define KERNEL extern "C" __global__ void
// Blocks that a multiprocessor must be able to run at once. This limits registers.
#define BLOCKS(count) __launch_bounds__(THREADS, count)
// `wgmma` needs matrices to begin at a multiple of 1,024 bytes.
#define SHARED __shared__ __align__(1024)
#define THREADS 128
#define MINUS_INFINITY __int_as_float(0xff800000)
// Whether the four warps of a block multiply together, with `wgmma`. Only compute capability 9.0 has this instruction.
#if USES_WARPGROUPS && defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define WARPGROUPS 1
#else
#define WARPGROUPS 0
#endif

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

#if WARPGROUPS
// Right operands of `multiply_warpgroup`: 16 numbers of each column, where columns are rows of shared memory.
struct Columns {
    u64 matrix;
};

// Right operands of 16 rows of shared memory.
struct Rows {
    u64 matrix;
};

#define FOUR(x, i) "+f"(x[i][0]), "+f"(x[i][1]), "+f"(x[i][2]), "+f"(x[i][3])
#define SIXTEEN(x, i) FOUR(x, i), FOUR(x, i + 1), FOUR(x, i + 2), FOUR(x, i + 3)
#define NAMES_16 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15"
#define NAMES_32 NAMES_16 ",%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define NAMES_64                                                                                                              \
    NAMES_32 ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
// Begins to add a product to sums. The names are those of the sums, the left operand and the descriptor of the right one.
#define BEGIN(columns, sums, left, right, is_transposed)                                                                      \
    "{.reg .pred adds; setp.eq.u32 adds, 0, 0; wgmma.mma_async.sync.aligned.m64n" columns "k16.f32.bf16.bf16 {" sums "}, {" left \
    "}, " right ", adds, 1, 1, " is_transposed ";}"

// Begin to add the product of 64 × 16 and 16 × 32, 64 or 128, of which each warp has 16 rows. The layout in registers is that of `multiply`.
DEVICE void multiply_warpgroup(float (&sums)[4][4], const u32 (&left)[4], Columns right) {
    asm volatile(BEGIN("32", NAMES_16, "%16,%17,%18,%19", "%20", "0")
                 : SIXTEEN(sums, 0)
                 : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "l"(right.matrix) : "memory");
}

DEVICE void multiply_warpgroup(float (&sums)[8][4], const u32 (&left)[4], Rows right) {
    asm volatile(BEGIN("64", NAMES_32, "%32,%33,%34,%35", "%36", "1")
                 : SIXTEEN(sums, 0), SIXTEEN(sums, 4)
                 : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "l"(right.matrix) : "memory");
}

DEVICE void multiply_warpgroup(float (&sums)[16][4], const u32 (&left)[4], Rows right) {
    asm volatile(BEGIN("128", NAMES_64, "%64,%65,%66,%67", "%68", "1")
                 : SIXTEEN(sums, 0), SIXTEEN(sums, 4), SIXTEEN(sums, 8), SIXTEEN(sums, 12)
                 : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "l"(right.matrix) : "memory");
}

// Keeps the compiler from moving uses of registers across this place.
template <int N> DEVICE void settle(float (&x)[N][4]) {
#pragma unroll
    for (int i = 0; i < N; i++) asm volatile("" : FOUR(x, i) : : "memory");
}

template <int N> DEVICE void settle(u32 (&x)[N][4]) {
#pragma unroll
    for (int i = 0; i < N; i++) asm volatile("" : "+r"(x[i][0]), "+r"(x[i][1]), "+r"(x[i][2]), "+r"(x[i][3]) : : "memory");
}
#endif

// Products of a warpgroup run while the warps go on. Sums and left operands belong to them from `begin_products` until `end_products`.
template <class... Registers> DEVICE void begin_products(Registers&... registers) {
#if WARPGROUPS
    (settle(registers), ...);
    asm volatile("wgmma.fence.sync.aligned;" : : : "memory");
#endif
}

template <class... Registers> DEVICE void end_products(Registers&... registers) {
#if WARPGROUPS
    asm volatile("wgmma.commit_group.sync.aligned;" : : : "memory");
    asm volatile("wgmma.wait_group.sync.aligned 0;" : : : "memory");
    (settle(registers), ...);
#endif
}

// Starts a copy of 16 bytes to shared memory without waiting. Copies zeros if `is_there` is false.
DEVICE void copy_later(void* to, const void* from, bool is_there) {
    int bytes = is_there ? 16 : 0;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" : : "r"(address_of(to)), "l"(from), "r"(bytes) : "memory");
}

DEVICE void end_group() { asm volatile("cp.async.commit_group;" : : : "memory"); }

// Waits for all groups of copies except the last `N`.
template <int N> DEVICE void wait_for_groups() { asm volatile("cp.async.wait_group %0;" : : "n"(N) : "memory"); }

// Lets products of a warpgroup, which read shared memory in a way of their own, see copies of this thread that are there.
DEVICE void show_to_warpgroup() {
#if WARPGROUPS
    asm volatile("fence.proxy.async.shared::cta;" : : : "memory");
#endif
}

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
