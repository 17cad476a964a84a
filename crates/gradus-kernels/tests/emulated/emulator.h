// Emulates the parts of CUDA that `src/gpu/cuda/*.cu` uses, in plain C++ on a CPU. The threads of a block are coroutines, and an
// instruction of a warp waits until all 32 lanes have reached it.
//
// Asynchronous copies and products are made late (when a kernel waits for them) or at once, depending on `is_late`. A kernel must give the
// same numbers either way.
#pragma once

#include <ucontext.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <vector>

typedef uint32_t u32;
typedef uint64_t u64;

#define THREADS 128
#define MINUS_INFINITY (-INFINITY)
#define DEVICE static inline
#define KERNEL static void
#define BLOCKS(count)
// The lower bits of an address in an array of up to 64 KiB are then its address in shared memory.
#define SHARED alignas(65536) static
#ifndef WARPGROUPS
#define WARPGROUPS 0
#endif

namespace emulated {

struct Copy {
    void* to;
    const void* from;
    bool is_there;
};

// A product of a warpgroup: the sums and the left operand of a lane, and the descriptor of the right operand.
struct Product {
    float* sums;
    const u32* left;
    u64 right;
    int columns;
    bool is_transposed;
};

struct Thread {
    ucontext_t context;
    std::vector<char> stack;
    bool is_done = false;
    // Groups of copies that are not yet waited for. The last group is open.
    std::deque<std::vector<Copy>> groups{{}};
    // Products that are not yet waited for, and whether there may be products.
    std::vector<Product> products;
    bool has_begun = false;
    // Arguments of a lane for an instruction of its warp.
    const void* brought[2] = {};
    float value = 0;
};

struct Block {
    Thread threads[THREADS];
    ucontext_t scheduler;
    int current = 0;
    // Number of threads that have reached the barrier of the block, or of their warp, and number of completed barriers.
    int at_barrier = 0, barriers = 0;
    int at_warp[THREADS / 32] = {}, warps[THREADS / 32] = {};
    u32 x = 0, y = 0, columns = 1;
    bool is_late = true;
};

inline Block* block = nullptr;
inline std::function<void()> body;

inline Thread& self() { return block->threads[block->current]; }

inline void pause() {
    Thread& thread = self();
    swapcontext(&thread.context, &block->scheduler);
}

inline void wait_for(int& count, int& rounds, int all) {
    int round = rounds;
    if (++count == all) {
        count = 0;
        rounds++;
    }
    while (rounds == round) pause();
}

inline void warp_barrier() {
    int warp = block->current / 32;
    wait_for(block->at_warp[warp], block->warps[warp], 32);
}

inline void make(std::vector<Copy>& copies) {
    for (const Copy& copy : copies) {
        if (copy.is_there) {
            memcpy(copy.to, copy.from, 16);
        } else {
            memset(copy.to, 0, 16);
        }
    }
    copies.clear();
}

inline void enter() {
    body();
    self().is_done = true;
    pause();
}

// Runs one block.
inline void run(u32 x, u32 y, u32 columns, bool is_late, std::function<void()> kernel) {
    block = new Block;
    block->x = x;
    block->y = y;
    block->columns = columns;
    block->is_late = is_late;
    body = std::move(kernel);
    for (int i = 0; i < THREADS; i++) {
        Thread& thread = block->threads[i];
        thread.stack.resize(256 << 10);
        getcontext(&thread.context);
        thread.context.uc_stack.ss_sp = thread.stack.data();
        thread.context.uc_stack.ss_size = thread.stack.size();
        thread.context.uc_link = nullptr;
        makecontext(&thread.context, enter, 0);
    }
    for (int left = THREADS; left > 0;) {
        left = 0;
        for (int i = 0; i < THREADS; i++) {
            if (block->threads[i].is_done) continue;
            left++;
            block->current = i;
            swapcontext(&block->scheduler, &block->threads[i].context);
        }
    }
    delete block;
    block = nullptr;
}

inline float of_bf16(uint16_t half) {
    u32 bits = (u32)half << 16;
    float value;
    memcpy(&value, &bits, 4);
    return value;
}

inline uint16_t to_bf16(float value) {
    u32 bits;
    memcpy(&bits, &value, 4);
    if (value != value) return 0x7fff;
    return (uint16_t)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

}  // namespace emulated

DEVICE u32 thread_index() { return emulated::block->current; }
DEVICE u32 block_x() { return emulated::block->x; }
DEVICE u32 block_y() { return emulated::block->y; }
DEVICE u32 blocks_x() { return emulated::block->columns; }
DEVICE float exp2_of(float x) { return exp2f(x); }
DEVICE float log2_of(float x) { return log2f(x); }
DEVICE float tanh_of(float x) { return tanhf(x); }

DEVICE void synchronize() { emulated::wait_for(emulated::block->at_barrier, emulated::block->barriers, THREADS); }

DEVICE u32 pack(float first, float second) {
    return emulated::to_bf16(first) | (u32)emulated::to_bf16(second) << 16;
}

DEVICE float shuffle_xor(float x, int mask) {
    using namespace emulated;
    self().value = x;
    warp_barrier();
    float other = block->threads[block->current ^ mask].value;
    warp_barrier();
    return other;
}

DEVICE float shuffle(float x, int lane) {
    using namespace emulated;
    self().value = x;
    warp_barrier();
    float other = block->threads[block->current / 32 * 32 + lane].value;
    warp_barrier();
    return other;
}

DEVICE bool any_of_warp(bool x) {
    using namespace emulated;
    self().value = x;
    warp_barrier();
    bool any = false;
    for (int lane = 0; lane < 32; lane++) any |= block->threads[block->current / 32 * 32 + lane].value != 0;
    warp_barrier();
    return any;
}

// The fragment layout of `mma.m16n8k16`, as documented for PTX.
DEVICE void multiply(float sums[4], const u32 a[4], u32 b0, u32 b1) {
    using namespace emulated;
    u32 b[2] = {b0, b1};
    self().brought[0] = a;
    self().brought[1] = b;
    warp_barrier();
    int warp = block->current / 32 * 32, lane = block->current % 32;
    auto half = [](u32 word, int odd) { return of_bf16((uint16_t)(word >> 16 * odd)); };
    float added[4];
    for (int i = 0; i < 4; i++) {
        int row = lane / 4 + i / 2 * 8, column = lane % 4 * 2 + i % 2;
        float sum = sums[i];
        for (int k = 0; k < 16; k++) {
            const u32* left = (const u32*)block->threads[warp + row % 8 * 4 + k % 8 / 2].brought[0];
            const u32* right = (const u32*)block->threads[warp + column * 4 + k % 8 / 2].brought[1];
            sum += half(left[row / 8 + k / 8 * 2], k % 2) * half(right[k / 8], k % 2);
        }
        added[i] = sum;
    }
    warp_barrier();
    memcpy(sums, added, sizeof added);
}

DEVICE void load(u32 to[4], const void* row, bool is_transposed) {
    using namespace emulated;
    if ((uintptr_t)row % 16 != 0) {
        fprintf(stderr, "a row of a matrix does not begin at 16 bytes\n");
        abort();
    }
    self().brought[0] = row;
    warp_barrier();
    int warp = block->current / 32 * 32, lane = block->current % 32;
    for (int i = 0; i < 4; i++) {
        uint16_t pair[2];
        for (int odd = 0; odd < 2; odd++) {
            int r = is_transposed ? lane % 4 * 2 + odd : lane / 4, c = is_transposed ? lane / 4 : lane % 4 * 2 + odd;
            pair[odd] = ((const uint16_t*)block->threads[warp + 8 * i + r].brought[0])[c];
        }
        to[i] = pair[0] | (u32)pair[1] << 16;
    }
    warp_barrier();
}

DEVICE void load_matrices(u32 to[4], const void* row) { load(to, row, false); }
DEVICE void load_transposed(u32 to[4], const void* row) { load(to, row, true); }

DEVICE void copy_later(void* to, const void* from, bool is_there) {
    emulated::self().groups.back().push_back({to, from, is_there});
    if (!emulated::block->is_late) emulated::make(emulated::self().groups.back());
}

DEVICE void end_group() { emulated::self().groups.push_back({}); }

template <int N> static void wait_for_groups() {
    auto& groups = emulated::self().groups;
    // The open group is not counted.
    while ((int)groups.size() - 1 > N) {
        emulated::make(groups.front());
        groups.pop_front();
    }
}

DEVICE void show_to_warpgroup() {}

template <class... Registers> DEVICE void begin_products(Registers&...) {
#if WARPGROUPS
    emulated::self().has_begun = true;
#endif
}

#if WARPGROUPS
namespace emulated {

// The upper bits of addresses in shared memory.
inline uintptr_t base = 0;

// The number at row `k` and column `n` of the right operand, in a matrix that is swizzled over 128 bytes. The layouts are those that CUTLASS
// documents for `GmmaDescriptor`: with offsets L and S, in bytes, an element of a transposed operand is at
// n % 64 · 2 + n / 64 · L + k % 8 · 128 + k / 8 · S, one of another operand at k · 2 + n % 8 · 128 + n / 8 · S. Bits 7 to 9 of an address
// then flip bits 4 to 6.
inline float at(const Product& of, int k, int n) {
    auto field = [&](int bit) { return (u32)(of.right >> bit & 0x3fff) << 4; };
    if (of.right >> 62 != 1 || field(0) % 1024 >= 128) {
        fprintf(stderr, "not a matrix that is swizzled over 128 bytes and begins at a multiple of 1,024\n");
        abort();
    }
    u32 to = of.is_transposed ? n % 64 * 2 + n / 64 * field(16) + k % 8 * 128 + k / 8 * field(32) : k * 2 + n % 8 * 128 + n / 8 * field(32);
    to += field(0);
    to ^= (to >> 7 & 7) << 4;
    return of_bf16(*(const uint16_t*)(base + to));
}

// Adds product `i` of each lane of this warp. The layouts in registers are those of `multiply`, 8 columns at a time.
inline void add_product(size_t i) {
    int warp = block->current / 32 * 32, lane = block->current % 32;
    const Product& of = self().products[i];
    for (int tile = 0; tile < of.columns / 8; tile++) {
        for (int j = 0; j < 4; j++) {
            int row = lane / 4 + j / 2 * 8, column = 8 * tile + lane % 4 * 2 + j % 2;
            float& sum = of.sums[4 * tile + j];
            for (int k = 0; k < 16; k++) {
                u32 word = block->threads[warp + row % 8 * 4 + k % 8 / 2].products[i].left[row / 8 + k / 8 * 2];
                sum += of_bf16((uint16_t)(word >> 16 * (k % 2))) * at(of, k, column);
            }
        }
    }
}

// Adds all products that the lanes of this warp have begun.
inline void add_products() {
    warp_barrier();
    for (size_t i = 0; i < self().products.size(); i++) add_product(i);
    warp_barrier();
    self().products.clear();
    warp_barrier();
}

inline void begin(const Product& product) {
    if (!self().has_begun) {
        fprintf(stderr, "a product without `begin_products`\n");
        abort();
    }
    self().products.push_back(product);
    if (!block->is_late) add_products();
}

}  // namespace emulated

DEVICE u32 address_of(const void* shared) {
    emulated::base = (uintptr_t)shared & ~(uintptr_t)0xffff;
    return (uintptr_t)shared & 0xffff;
}

// Right operands, as in `attention.cu`.
struct Columns {
    u64 matrix;
};

struct Rows {
    u64 matrix;
};

template <int N> static void multiply_warpgroup(float (&sums)[N][4], const u32 (&left)[4], Columns right) {
    emulated::begin({sums[0], left, right.matrix, 8 * N, false});
}

template <int N> static void multiply_warpgroup(float (&sums)[N][4], const u32 (&left)[4], Rows right) {
    emulated::begin({sums[0], left, right.matrix, 8 * N, true});
}
#endif

template <class... Registers> DEVICE void end_products(Registers&...) {
#if WARPGROUPS
    emulated::self().has_begun = false;
    emulated::add_products();
#endif
}
