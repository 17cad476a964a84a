// Emulates the parts of CUDA that `src/gpu/cuda/*.cu` uses, in plain C++ on a CPU. The threads of a block are coroutines, and an
// instruction of a warp waits until all 32 lanes have reached it.
//
// Asynchronous copies are made late (when a kernel waits for them) or at once, depending on `is_late`. A kernel must give the same numbers
// either way.
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
#define SHARED alignas(128) static

namespace emulated {

struct Copy {
    void* to;
    const void* from;
    bool is_there;
};

struct Thread {
    ucontext_t context;
    std::vector<char> stack;
    bool is_done = false;
    // Groups of copies that are not yet waited for. The last group is open.
    std::deque<std::vector<Copy>> groups{{}};
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

template <int N>
static void wait_for_groups() {
    auto& groups = emulated::self().groups;
    // The open group is not counted.
    while ((int)groups.size() - 1 > N) {
        emulated::make(groups.front());
        groups.pop_front();
    }
}
