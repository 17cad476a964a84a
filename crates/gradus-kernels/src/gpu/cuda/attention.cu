// Attention over packed sequences on tensor cores: operands in bf16, sums and exponentials in f32. The mathematics is in
// `attention/mod.rs`, the tables are in `attention/tiles.rs`.
//
// A block has four warps. Each warp has 16 rows of a tile of 64: queries in `attention_forward` and `attention_backward_queries`, keys in
// `attention_backward_keys`. A warp keeps its sums in registers, so no other warp adds to them, and the same input gives the same bits.
// Scores pass from one product to the next in registers, because the sums of a product have the layout of the next product's left operand.
//
// With WARPGROUPS, the four warps multiply with `wgmma`, else each warp with `mma`. Both have the same layouts of sums and left operands.
// With `wgmma`, the hardware reads the right operand once for all warps, without registers.
//
// Compile-time definitions: HEAD_DIM (64 or 128), GROUP (query heads per key/value head), IS_CAPPED and DROPS (0 or 1).
// `tests/emulated/` compiles this file for a CPU.

typedef unsigned short bf16;

#define TILE 64
#define CHUNKS (HEAD_DIM / 8)
#define STEPS (HEAD_DIM / 16)
// Keys per pass of `attention_forward` and `attention_backward_queries`, and queries per pass of `attention_backward_keys`: one per lane of a
// warp. Few, so that several blocks fit on a multiprocessor.
#define ROWS 32
// Columns of scores that the backward passes compute before they use them. With `mma`, few columns need few registers. `wgmma` is slow for few.
#define STRIP (WARPGROUPS ? ROWS : 16)
// Numbers of a row that are next to each other in shared memory: 128 bytes, as `wgmma` needs it. Other parts of the rows follow.
#define SPAN 64
#define LOG2_E 1.4426950408889634f
#define LN_2 0.6931471805599453f
// Score of a hidden key.
#define NOTHING MINUS_INFINITY

struct Scalars {
    u32 heads;
    float scale;
    float cap;
    u32 before;
    u32 after;
    // Dropout: the words of the key, the threshold below which a probability is dropped, and the factor of the others.
    u32 key_low;
    u32 key_high;
    u32 threshold;
    float factor;
};

// One tile of queries, as words of the table.
struct Queries {
    u32 first, count, position, prefix, prefix_length, own, length;
};

// Offset of 8 numbers of a row. The rows of an 8 × 8 matrix are in different banks.
DEVICE int place(int row, int chunk) { return chunk / 8 * ROWS * SPAN + row * SPAN + (((chunk ^ row) & 7) << 3); }

DEVICE u32 row_of_key(const Queries& tile, u32 position) {
    return position < tile.prefix_length ? tile.prefix + position : tile.own + position - tile.prefix_length;
}

// Waits until the copies of all threads of the block are there, for each way of reading shared memory.
DEVICE void receive_copies() {
    wait_for_groups<0>();
    show_to_warpgroup();
    synchronize();
}

// Rows that the threads of a block copy at a time. A multiple of 8, so a thread's rows have their chunks at the same places.
#define ROWS_AT_ONCE (THREADS / CHUNKS)

// Eight numbers of a row that a thread copies: of row `row` and the rows that are multiples of ROWS_AT_ONCE away, from column `column` to
// place `to`.
struct Copied {
    u32 row, column, to;
};

DEVICE Copied copied_by_thread(u32 head) {
    u32 row = thread_index() / CHUNKS, chunk = thread_index() % CHUNKS;
    return Copied{row, head * HEAD_DIM + chunk * 8, (u32)place(row, chunk)};
}

// Copies `count` rows from row `first` of a matrix of `width` columns, and zeros up to ROWS rows.
DEVICE void copy_rows(bf16* to, const bf16* x, u32 width, u32 first, u32 count, const Copied& of) {
    const bf16* from = x + ((u64)(first + of.row) * width + of.column);
#pragma unroll
    for (int i = 0; i < ROWS; i += ROWS_AT_ONCE) {
        copy_later(to + of.to + i * SPAN, from, of.row + i < count);
        from += (u64)ROWS_AT_ONCE * width;
    }
}

// Copies keys or values `from..from + ROWS` of a sequence.
DEVICE void copy_keys(bf16* to, const bf16* x, u32 width, const Queries& tile, u32 from, const Copied& of) {
    if (from >= tile.prefix_length || from + ROWS <= tile.prefix_length) {
        copy_rows(to, x, width, row_of_key(tile, from), tile.length - from, of);
        return;
    }
    // Some of the keys are in the prefix, others are not.
#pragma unroll 1
    for (u32 i = 0; i < ROWS; i += ROWS_AT_ONCE) {
        u32 key = from + i + of.row;
        bool is_there = key < tile.length;
        const bf16* row = x + (u64)(is_there ? row_of_key(tile, key) : 0) * width;
        copy_later(to + of.to + i * SPAN, row + of.column, is_there);
    }
}

// Loads this lane's part of the left operands of 16 rows, starting at row `first`. Rows from `rows` on are zero.
DEVICE void load_rows(u32 to[STEPS][4], const bf16* x, u32 first, u32 rows, u32 width, u32 head) {
    int lane = thread_index() % 32, top = lane / 4, column = lane % 4 * 2;
    for (int half = 0; half < 2; half++) {
        bool is_there = (u32)(top + 8 * half) < rows;
        const bf16* row = x + (is_there ? (u64)(first + top + 8 * half) * width + head * HEAD_DIM : 0);
#pragma unroll
        for (int k = 0; k < STEPS; k++) {
            to[k][half] = is_there ? *(const u32*)(row + 16 * k + column) : 0;
            to[k][half + 2] = is_there ? *(const u32*)(row + 16 * k + 8 + column) : 0;
        }
    }
}

// This lane's places in `add_columns` and `add_rows` for row 0 and chunk 0. As rows are multiples of 16 and chunks are even, those of other
// rows and chunks follow by an addition and an exclusive or.
struct Places {
    int columns, rows;
};

DEVICE Places places_of_lane() {
    int lane = thread_index() % 32;
    return Places{place(lane % 8 + lane / 16 * 8, lane / 8 % 2), place(lane % 16, lane / 16)};
}

#if WARPGROUPS
// Descriptors of matrices in shared memory whose rows of 64 numbers are swizzled over 128 bytes: their address, the distance between
// parts of 64 columns, and the distance between 8 rows, in units of 16 bytes.
DEVICE u64 matrix(const void* shared, u32 bytes_of_part) {
    return (u64)1 << 62 | (u64)(1024 >> 4) << 32 | (u64)(bytes_of_part >> 4) << 16 | address_of(shared) >> 4;
}

// Right operands in rows of shared memory from row `first`: 16 numbers of these rows, those of step `step`, and 16 whole rows.
DEVICE Columns columns_of(const bf16* shared, int first, int step) {
    return Columns{matrix(shared + step / 4 * ROWS * SPAN + first * SPAN + step % 4 * 16, 16)};
}

DEVICE Rows rows_of(const bf16* shared, int first) { return Rows{matrix(shared + first * SPAN, ROWS * SPAN * sizeof(bf16))}; }
#endif

// Adds products of 16 numbers, those of step `step`, of the left operand and of 8 · TILES rows of shared memory, starting at row `first`.
template <int TILES>
DEVICE void add_columns(float (&sums)[TILES][4], u32 (&left)[4], const bf16* shared, const Places& of, int first, int step) {
#if WARPGROUPS
    multiply_warpgroup(sums, left, columns_of(shared, first, step));
#else
    const bf16* part = shared + step / 4 * ROWS * SPAN + first * SPAN;
#pragma unroll
    for (int j = 0; j < TILES; j += 2) {
        u32 b[4];
        load_matrices(b, part + (of.columns ^ 16 * (step % 4)) + 8 * j * SPAN);
        multiply(sums[j], left, b[0], b[1]);
        multiply(sums[j + 1], left, b[2], b[3]);
    }
#endif
}

// Adds the product of the left operand and 16 rows of shared memory, starting at row `first`.
DEVICE void add_rows(float (&sums)[CHUNKS][4], u32 (&left)[4], const bf16* shared, const Places& of, int first) {
#if WARPGROUPS
    multiply_warpgroup(sums, left, rows_of(shared, first));
#else
#pragma unroll
    for (int c = 0; c < CHUNKS; c += 2) {
        u32 b[4];
        load_transposed(b, shared + c / 8 * ROWS * SPAN + (of.rows ^ 8 * (c % 8)) + first * SPAN);
        multiply(sums[c], left, b[0], b[1]);
        multiply(sums[c + 1], left, b[2], b[3]);
    }
#endif
}

// The left operands for scores of this lane in bf16.
template <int TILES> DEVICE void pack_all(u32 (&to)[TILES / 2][4], const float (&scores)[TILES][4]) {
#pragma unroll
    for (int k = 0; k < TILES / 2; k++) {
        const float *a = scores[2 * k], *b = scores[2 * k + 1];
        to[k][0] = pack(a[0], a[1]);
        to[k][1] = pack(a[2], a[3]);
        to[k][2] = pack(b[0], b[1]);
        to[k][3] = pack(b[2], b[3]);
    }
}

// `score` returns a score divided by `unit_of_scores`, and its slope if it is capped. Scores are stored in this unit, so that scaling costs
// only the one multiplication that turns them into exponents.
DEVICE float unit_of_scores(const Scalars& of) { return (IS_CAPPED ? 1.0f : of.scale) * LOG2_E; }

DEVICE float score(float product, const Scalars& of, float* slope) {
    *slope = 1.0f;
#if IS_CAPPED
    float t = tanh_of(product * of.scale / of.cap);
    *slope = 1.0f - t * t;
    return of.cap * t;
#else
    return product;
#endif
}

DEVICE bool sees(u32 query, u32 key, const Scalars& of) { return key <= query + of.after && query <= key + of.before; }

// Positions `from..from + count`.
struct Range {
    u32 from, count;
};

// The positions below `end` that are at most `before` before and at most `after` after `position`. None if it does not exist.
DEVICE Range seen(bool exists, u32 position, u32 before, u32 after, u32 end) {
    u32 from = position > before ? position - before : 0, last = position + after + 1;
    last = last < end ? last : end;
    return Range{from, exists && last > from ? last - from : 0};
}

DEVICE bool contains(const Range& range, u32 position) { return position - range.from < range.count; }

// Replaces this lane's scores outside of the ranges of its two rows by `hidden`. The columns are the positions from `from`.
template <int COUNT> DEVICE void hide(float (&scores)[COUNT][4], const Range ranges[2], u32 from, float hidden) {
    u32 column = from + thread_index() % 4 * 2;
#pragma unroll
    for (int j = 0; j < COUNT; j++) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            scores[j][i] = contains(ranges[i / 2], column + 8 * j + i % 2) ? scores[j][i] : hidden;
        }
    }
}

// Masks of dropout, as in `attention/dropout.rs`: the random number of an index, the key of one head and query, and the factor of the
// probability of a key. The factor is 1 without dropout.
DEVICE u64 mix(u64 index) {
    u64 z = index * 0x9E3779B97F4A7C15ull + 0x9E3779B97F4A7C15ull;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    return z ^ (z >> 31);
}

DEVICE u64 key_of_row(u32 head, u32 query, const Scalars& of) {
#if DROPS
    return mix(((u64)of.key_high << 32 | of.key_low) ^ mix(((u64)head << 32) + query));
#else
    return 0;
#endif
}

DEVICE float kept(u64 key_of_row, u32 key, const Scalars& of) {
#if DROPS
    return (u32)(mix(key_of_row + key) >> 32) < of.threshold ? 0.0f : of.factor;
#else
    return 1.0f;
#endif
}

// Maximum and sum over the four lanes of a row.
DEVICE float largest_of_row(float x) {
    x = fmaxf(x, shuffle_xor(x, 1));
    return fmaxf(x, shuffle_xor(x, 2));
}

DEVICE float sum_of_row(float x) {
    x += shuffle_xor(x, 1);
    return x + shuffle_xor(x, 2);
}

// In causal attention, the tiles with most keys are the last of a sequence. They start first.
DEVICE Queries tile_of_block(const u32* tiles) {
    const u32* word = tiles + (blocks_x() - 1 - block_x()) * 7;
    return Queries{word[0], word[1], word[2], word[3], word[4], word[5], word[6]};
}

// Keys that a row of a tile sees.
DEVICE Range keys_of_row(const Queries& tile, u32 row, const Scalars& of) {
    return seen(row < tile.count, tile.position + row, of.before, of.after, tile.length);
}

// First key that a tile sees, rounded down to a tile of keys, and the end of its keys.
DEVICE u32 first_key(const Queries& tile, const Scalars& of) {
    return tile.position > of.before ? (tile.position - of.before) / TILE * TILE : 0;
}

DEVICE u32 end_of_keys(const Queries& tile, const Scalars& of) {
    u32 end = tile.position + tile.count + of.after;
    return end < tile.length ? end : tile.length;
}

// Whether every query of a tile sees every key of `from..from + ROWS`.
DEVICE bool sees_all(const Queries& tile, u32 from, const Scalars& of) {
    return tile.count == TILE && from + ROWS <= tile.length && sees(tile.position, from + ROWS - 1, of) &&
           sees(tile.position + TILE - 1, from, of);
}

// Blocks on a multiprocessor: as many as have registers for their sums.
#define BLOCKS_FORWARD (HEAD_DIM == 64 ? 5 : 3)
#define BLOCKS_OF_QUERIES (HEAD_DIM == 64 ? (WARPGROUPS ? 4 : 5) : (WARPGROUPS ? 2 : 3))
#define BLOCKS_OF_KEYS (HEAD_DIM == 64 ? 3 : 2)

KERNEL BLOCKS(BLOCKS_FORWARD)
attention_forward(const bf16* q, const bf16* k, const bf16* v, const u32* tiles, bf16* out, float* log_sums, Scalars of) {
    // One buffer is read while the other is filled.
    SHARED bf16 places[2][2][ROWS * HEAD_DIM];
    Queries tile = tile_of_block(tiles);
    u32 head = block_y(), kv_head = head / GROUP, width = of.heads * HEAD_DIM, kv_width = width / GROUP;
    int warp = thread_index() / 32, lane = thread_index() % 32;
    u32 from = first_key(tile, of), end = end_of_keys(tile, of);
    float unit = unit_of_scores(of);
    Places of_lane = places_of_lane();
    Copied part = copied_by_thread(kv_head);
    copy_keys(places[0][0], k, kv_width, tile, from, part);
    copy_keys(places[0][1], v, kv_width, tile, from, part);
    end_group();
    u32 queries[STEPS][4];
    u32 rows_here = tile.count > 16u * warp ? tile.count - 16u * warp : 0;
    load_rows(queries, q, tile.first + 16 * warp, rows_here, width, head);
    float sums[CHUNKS][4] = {};
    float largest[2] = {NOTHING, NOTHING}, total[2] = {0.0f, 0.0f};
    u64 row_keys[2];
    for (int half = 0; half < 2; half++) row_keys[half] = key_of_row(head, tile.first + 16 * warp + lane / 4 + 8 * half, of);
    for (int at = 0; from < end; from += ROWS, at ^= 1) {
        const bf16 *keys = places[at][0], *values = places[at][1];
        receive_copies();
        if (from + ROWS < end) {
            copy_keys(places[at ^ 1][0], k, kv_width, tile, from + ROWS, part);
            copy_keys(places[at ^ 1][1], v, kv_width, tile, from + ROWS, part);
        }
        end_group();
        float scores[ROWS / 8][4] = {};
        begin_products(scores, queries);
#pragma unroll
        for (int step = 0; step < STEPS; step++) add_columns(scores, queries[step], keys, of_lane, 0, step);
        end_products(scores, queries);
#if IS_CAPPED
#pragma unroll
        for (int j = 0; j < ROWS / 8; j++) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                float slope;
                scores[j][i] = score(scores[j][i], of, &slope);
            }
        }
#endif
        if (!sees_all(tile, from, of)) {
            Range keys_of[2];
            for (int half = 0; half < 2; half++) keys_of[half] = keys_of_row(tile, 16 * warp + lane / 4 + 8 * half, of);
            hide(scores, keys_of, from, NOTHING);
        }
        float bounds[2], shrinks[2];
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float highest = largest[half];
#pragma unroll
            for (int j = 0; j < ROWS / 8; j++) {
                highest = fmaxf(highest, fmaxf(scores[j][2 * half], scores[j][2 * half + 1]));
            }
            highest = largest_of_row(highest);
            // If a row has seen no key yet, the exponent would be −∞ − (−∞). A bound of 0 avoids that.
            bounds[half] = highest == NOTHING ? 0.0f : highest * unit;
            shrinks[half] = exp2_of(largest[half] * unit - bounds[half]);
            largest[half] = highest;
        }
        // After the first keys, the maximum of a row rarely grows.
        if (any_of_warp(shrinks[0] != 1.0f || shrinks[1] != 1.0f)) {
#pragma unroll
            for (int half = 0; half < 2; half++) {
                total[half] *= shrinks[half];
#pragma unroll
                for (int c = 0; c < CHUNKS; c++) {
                    sums[c][2 * half] *= shrinks[half];
                    sums[c][2 * half + 1] *= shrinks[half];
                }
            }
        }
#pragma unroll
        for (int j = 0; j < ROWS / 8; j++) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                scores[j][i] = exp2_of(scores[j][i] * unit - bounds[i / 2]);
                total[i / 2] += scores[j][i];
                scores[j][i] *= kept(row_keys[i / 2], from + 8 * j + lane % 4 * 2 + i % 2, of);
            }
        }
        u32 weights[ROWS / 16][4];
        pack_all(weights, scores);
        begin_products(sums, weights);
#pragma unroll
        for (int k = 0; k < ROWS / 16; k++) add_rows(sums, weights[k], values, of_lane, 16 * k);
        end_products(sums, weights);
    }
    wait_for_groups<0>();
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float sum = sum_of_row(total[half]);
        u32 row = 16 * warp + lane / 4 + 8 * half;
        if (row >= tile.count) continue;
        u64 at = tile.first + row;
        float inverse = sum > 0.0f ? 1.0f / sum : 0.0f;
#pragma unroll
        for (int c = 0; c < CHUNKS; c++) {
            bf16* to = out + at * width + head * HEAD_DIM + 8 * c + lane % 4 * 2;
            *(u32*)to = pack(sums[c][2 * half] * inverse, sums[c][2 * half + 1] * inverse);
        }
        if (lane % 4 == 0) {
            log_sums[at * of.heads + head] = sum > 0.0f ? (largest[half] * unit + log2_of(sum)) * LN_2 : 0.0f;
        }
    }
}

KERNEL BLOCKS(BLOCKS_OF_QUERIES)
attention_backward_queries(const bf16* q, const bf16* k, const bf16* v, const bf16* grad, const float* log_sums,
                                  const float* dots, const u32* tiles, float* grad_q, Scalars of) {
    // One buffer is read while the other is filled.
    SHARED bf16 places[2][2][ROWS * HEAD_DIM];
    Queries tile = tile_of_block(tiles);
    u32 head = block_y(), kv_head = head / GROUP, width = of.heads * HEAD_DIM, kv_width = width / GROUP;
    int warp = thread_index() / 32, lane = thread_index() % 32;
    u32 from = first_key(tile, of), end = end_of_keys(tile, of);
    float unit = unit_of_scores(of);
    Places of_lane = places_of_lane();
    Copied part = copied_by_thread(kv_head);
    copy_keys(places[0][0], k, kv_width, tile, from, part);
    copy_keys(places[0][1], v, kv_width, tile, from, part);
    end_group();
    u32 queries[STEPS][4], grads[STEPS][4];
    u32 rows_here = tile.count > 16u * warp ? tile.count - 16u * warp : 0;
    load_rows(queries, q, tile.first + 16 * warp, rows_here, width, head);
    load_rows(grads, grad, tile.first + 16 * warp, rows_here, width, head);
    float log_sum[2] = {}, dot[2] = {};
    u64 row_keys[2];
    for (int half = 0; half < 2; half++) {
        u32 row = 16 * warp + lane / 4 + 8 * half;
        row_keys[half] = key_of_row(head, tile.first + row, of);
        if (row < tile.count) {
            u64 at = (u64)(tile.first + row) * of.heads + head;
            log_sum[half] = log_sums[at] * LOG2_E;
            dot[half] = dots[at];
        }
    }
    float sums[CHUNKS][4] = {};
    for (int at = 0; from < end; from += ROWS, at ^= 1) {
        const bf16 *keys = places[at][0], *values = places[at][1];
        receive_copies();
        if (from + ROWS < end) {
            copy_keys(places[at ^ 1][0], k, kv_width, tile, from + ROWS, part);
            copy_keys(places[at ^ 1][1], v, kv_width, tile, from + ROWS, part);
        }
        end_group();
        bool is_all = sees_all(tile, from, of);
        // Processes some keys at a time, so that their scores are used up before the next ones are computed.
#pragma unroll
        for (int strip = 0; strip < ROWS; strip += STRIP) {
            float scores[STRIP / 8][4] = {}, grads_p[STRIP / 8][4] = {};
            begin_products(scores, grads_p, queries, grads);
#pragma unroll
            for (int step = 0; step < STEPS; step++) {
                add_columns(scores, queries[step], keys, of_lane, strip, step);
                add_columns(grads_p, grads[step], values, of_lane, strip, step);
            }
            end_products(scores, grads_p, queries, grads);
            float slopes[STRIP / 8][4];
#pragma unroll
            for (int j = 0; j < STRIP / 8; j++) {
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    float slope;
                    float p = exp2_of(score(scores[j][i], of, &slope) * unit - log_sum[i / 2]);
                    grads_p[j][i] *= kept(row_keys[i / 2], from + strip + 8 * j + lane % 4 * 2 + i % 2, of);
                    slopes[j][i] = p * (grads_p[j][i] - dot[i / 2]) * slope;
                }
            }
            if (!is_all) {
                Range keys_of[2];
                for (int half = 0; half < 2; half++) keys_of[half] = keys_of_row(tile, 16 * warp + lane / 4 + 8 * half, of);
                hide(slopes, keys_of, from + strip, 0.0f);
            }
            u32 left[STRIP / 16][4];
            pack_all(left, slopes);
            begin_products(sums, left);
#pragma unroll
            for (int k = 0; k < STRIP / 16; k++) add_rows(sums, left[k], keys, of_lane, strip + 16 * k);
            end_products(sums, left);
        }
    }
    wait_for_groups<0>();
#pragma unroll
    for (int half = 0; half < 2; half++) {
        u32 row = 16 * warp + lane / 4 + 8 * half;
        if (row >= tile.count) continue;
#pragma unroll
        for (int c = 0; c < CHUNKS; c++) {
            float* to = grad_q + (u64)(tile.first + row) * width + head * HEAD_DIM + 8 * c + lane % 4 * 2;
            to[0] = sums[c][2 * half] * of.scale;
            to[1] = sums[c][2 * half + 1] * of.scale;
        }
    }
}

// A pass over some queries of one head that read a tile of keys.
struct Pass {
    u32 member, reader;
    // Row and position of the first query, and the position at which the reader's queries end.
    u64 row;
    u32 from, end;
};

// Finds the first non-empty pass, starting with the head and the reader in `pass`. If there is none, `member` is `GROUP`.
DEVICE void find(Pass& pass, const u32* readers, const u32* tile, const Scalars& of) {
    u32 count = tile[1], position = tile[2];
    for (; pass.member < GROUP; pass.member++, pass.reader = tile[3]) {
        for (; pass.reader < tile[4]; pass.reader++) {
            const u32* reader = readers + 3 * pass.reader;
            u32 start = reader[2], last = start + reader[1];
            u32 end = position + count + of.before;
            pass.from = position > start + of.after ? position - of.after : start;
            pass.end = end < last ? end : last;
            pass.row = (u64)reader[0] + pass.from - start;
            if (pass.from < pass.end) return;
        }
    }
}

DEVICE Pass after(Pass pass, const u32* readers, const u32* tile, const Scalars& of) {
    pass.from += ROWS;
    pass.row += ROWS;
    if (pass.from >= pass.end) {
        pass.reader++;
        find(pass, readers, tile, of);
    }
    return pass;
}

KERNEL BLOCKS(BLOCKS_OF_KEYS)
attention_backward_keys(const bf16* q, const bf16* k, const bf16* v, const bf16* grad, const float* log_sums,
                               const float* dots, const u32* tiles, const u32* readers, float* grad_k, float* grad_v,
                               Scalars of) {
    // Queries and the gradients of their outputs. One buffer is read while the other is filled.
    SHARED bf16 places[2][2][ROWS * HEAD_DIM];
    const u32* tile = tiles + block_x() * 5;
    u32 first = tile[0], count = tile[1], position = tile[2];
    u32 kv_head = block_y(), width = of.heads * HEAD_DIM, kv_width = width / GROUP;
    int warp = thread_index() / 32, lane = thread_index() % 32;
    float unit = unit_of_scores(of);
    Places of_lane = places_of_lane();
    Copied part = copied_by_thread(0);
    u32 first_column = part.column;
    // Keys and values stay in registers, so only queries and gradients are read from shared memory.
    u32 keys[STEPS][4], values[STEPS][4];
    u32 rows_here = count > 16u * warp ? count - 16u * warp : 0;
    load_rows(keys, k, first + 16 * warp, rows_here, kv_width, kv_head);
    load_rows(values, v, first + 16 * warp, rows_here, kv_width, kv_head);
    Pass pass{0, tile[3], 0, 0, 0};
    find(pass, readers, tile, of);
    // Values of query i of the pass in lane i: its log-sum to base 2, and its dot.
    float log_sum = 0.0f, dot = 0.0f;
    auto fetch = [&](const Pass& of_pass, int at, float* to_log_sum, float* to_dot) {
        u32 head = kv_head * GROUP + of_pass.member, here = of_pass.end - of_pass.from;
        part.column = head * HEAD_DIM + first_column;
        copy_rows(places[at][0], q, width, (u32)of_pass.row, here, part);
        copy_rows(places[at][1], grad, width, (u32)of_pass.row, here, part);
        if ((u32)lane < here) {
            u64 row = (of_pass.row + lane) * of.heads + head;
            *to_log_sum = log_sums[row] * LOG2_E;
            *to_dot = dots[row];
        }
    };
    if (pass.member < GROUP) fetch(pass, 0, &log_sum, &dot);
    end_group();
    float sums_k[CHUNKS][4] = {}, sums_v[CHUNKS][4] = {};
    for (int at = 0; pass.member < GROUP; at ^= 1) {
        const bf16 *asked = places[at][0], *grads = places[at][1];
        receive_copies();
        Pass next = after(pass, readers, tile, of);
        float next_log_sum = 0.0f, next_dot = 0.0f;
        if (next.member < GROUP) fetch(next, at ^ 1, &next_log_sum, &next_dot);
        end_group();
        bool is_all = count == TILE && pass.from + ROWS <= pass.end && sees(pass.from, position + TILE - 1, of) &&
                      sees(pass.from + ROWS - 1, position, of);
        // Processes some queries at a time, so that their scores are used up before the next ones are computed.
#pragma unroll
        for (int strip = 0; strip < ROWS; strip += STRIP) {
            float scores[STRIP / 8][4] = {}, grads_p[STRIP / 8][4] = {};
            begin_products(scores, grads_p, keys, values);
#pragma unroll
            for (int step = 0; step < STEPS; step++) {
                add_columns(scores, keys[step], asked, of_lane, strip, step);
                add_columns(grads_p, values[step], grads, of_lane, strip, step);
            }
            end_products(scores, grads_p, keys, values);
#pragma unroll
            for (int j = 0; j < STRIP / 8; j++) {
#pragma unroll
                for (int odd = 0; odd < 2; odd++) {
                    int column = strip + 8 * j + lane % 4 * 2 + odd;
                    float of_log_sum = shuffle(log_sum, column), of_dot = shuffle(dot, column);
                    u64 row_key = key_of_row(kv_head * GROUP + pass.member, (u32)pass.row + column, of);
#pragma unroll
                    for (int i = odd; i < 4; i += 2) {
                        float slope;
                        float p = exp2_of(score(scores[j][i], of, &slope) * unit - of_log_sum);
                        float weight = kept(row_key, position + 16 * warp + lane / 4 + i / 2 * 8, of);
                        scores[j][i] = p * weight;
                        grads_p[j][i] = p * (grads_p[j][i] * weight - of_dot) * slope;
                    }
                }
            }
            if (!is_all) {
                Range queries_of[2];
                for (int half = 0; half < 2; half++) {
                    u32 row = 16 * warp + lane / 4 + 8 * half;
                    queries_of[half] = seen(row < count, position + row, of.after, of.before, pass.end);
                }
                hide(scores, queries_of, pass.from + strip, 0.0f);
                hide(grads_p, queries_of, pass.from + strip, 0.0f);
            }
            u32 left_p[STRIP / 16][4], left_s[STRIP / 16][4];
            pack_all(left_p, scores);
            pack_all(left_s, grads_p);
            begin_products(sums_v, sums_k, left_p, left_s);
#pragma unroll
            for (int k = 0; k < STRIP / 16; k++) {
                add_rows(sums_v, left_p[k], grads, of_lane, strip + 16 * k);
                add_rows(sums_k, left_s[k], asked, of_lane, strip + 16 * k);
            }
            end_products(sums_v, sums_k, left_p, left_s);
        }
        pass = next;
        log_sum = next_log_sum;
        dot = next_dot;
    }
    wait_for_groups<0>();
#pragma unroll
    for (int half = 0; half < 2; half++) {
        u32 row = 16 * warp + lane / 4 + 8 * half;
        if (row >= count) continue;
        u64 at = (u64)(first + row) * kv_width + kv_head * HEAD_DIM + lane % 4 * 2;
#pragma unroll
        for (int c = 0; c < CHUNKS; c++) {
            grad_k[at + 8 * c] = sums_k[c][2 * half] * of.scale;
            grad_k[at + 8 * c + 1] = sums_k[c][2 * half + 1] * of.scale;
            grad_v[at + 8 * c] = sums_v[c][2 * half];
            grad_v[at + 8 * c + 1] = sums_v[c][2 * half + 1];
        }
    }
}
