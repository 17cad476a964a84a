// Compares the layout of `crates/gradus-kernels/src/gpu/cuda/attention.cu` in shared memory, and its descriptors of matrices, with those of
// NVIDIA's CUTLASS. It runs on a CPU and needs no GPU:
//
//     pip install nvidia-cutlass nvidia-cuda-runtime nvidia-cuda-crt nvidia-cuda-cccl
//     S=…/site-packages; for dim in 64 128; do
//         c++ -std=c++17 -w -DHEAD_DIM=$dim -I$S/cutlass_library/source/include -I$S/nvidia/cu13/include -I$S/nvidia/cu13/include/cccl \
//             tools/gpu/layouts.cpp -o layouts && ./layouts
//     done
#define WARPGROUPS 1
#define GROUP 1
#define IS_CAPPED 0
#define DROPS 0
#include "../../crates/gradus-kernels/tests/emulated/emulator.h"

namespace ours {
#include "../../crates/gradus-kernels/src/gpu/cuda/attention.cu"
}
#undef DEVICE

// CUTLASS asks for the address in shared memory in this way.
static size_t __cvta_generic_to_shared(const void* shared) { return (uintptr_t)shared & 0xffff; }
#define CUTE_CVTA_GENERIC_TO_SHARED_ACTIVATED 1
#include <cute/atom/mma_traits_sm90_gmma.hpp>
#include <cute/tensor.hpp>

using namespace cute;
using Number = cutlass::bfloat16_t;

static int different = 0, compared = 0;

static void compare(const char* what, int row, int step, u64 found, u64 expected) {
    compared++;
    if (found == expected) return;
    different++;
    printf("%s, row %d, step %d: %016lx, CUTLASS has %016lx\n", what, row, step, (unsigned long)found, (unsigned long)expected);
}

int main() {
    alignas(65536) static Number shared[ROWS * HEAD_DIM];
    auto rows = tile_to_shape(SM90::GMMA::Layout_K_SW128_Atom<Number>{}, Shape<Int<ROWS>, Int<HEAD_DIM>>{});
    auto columns = tile_to_shape(SM90::GMMA::Layout_MN_SW128_Atom<Number>{}, Shape<Int<HEAD_DIM>, Int<ROWS>>{}, Step<_2, _1>{});
    for (int row = 0; row < ROWS; row++) {
        for (int column = 0; column < HEAD_DIM; column++) {
            u64 found = ours::place(row, column / 8) + column % 8;
            compare("place in rows", row, column, found, Swizzle<3, 3, 3>{}(rows.layout_b()(row, column)));
            compare("place in columns", row, column, found, Swizzle<3, 3, 3>{}(columns.layout_b()(column, row)));
        }
    }
    auto by_rows = make_tensor(make_smem_ptr(shared), rows);
    auto by_columns = make_tensor(make_smem_ptr(shared), columns);
    for (int first = 0; first < ROWS; first += 16) {
        for (int step = 0; step < HEAD_DIM / 16; step++) {
            auto tile = local_tile(by_rows, Shape<_16, _16>{}, make_coord(first / 16, step));
            u64 found = ours::columns_of((const ours::bf16*)shared, first, step).matrix;
            compare("columns", first, step, found, SM90::GMMA::make_gmma_desc<SM90::GMMA::Major::K>(tile).desc_);
        }
        auto tile = local_tile(by_columns, Shape<Int<HEAD_DIM>, _16>{}, make_coord(0, first / 16));
        u64 expected = SM90::GMMA::make_gmma_desc<SM90::GMMA::Major::MN>(tile).desc_, found = ours::rows_of((const ours::bf16*)shared, first).matrix;
        // The distance between parts is not used if there is only one.
        u64 used = HEAD_DIM == SPAN ? ~(0x3fffull << 16) : ~0ull;
        compare("rows", first, 0, found & used, expected & used);
    }
    printf("heads %d wide: %d of %d differ\n", HEAD_DIM, different, compared);
    return different != 0;
}
