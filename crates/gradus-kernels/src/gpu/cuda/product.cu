// Matrix products on tensor cores: operands in bf16, sums in f32.
//
// A block computes a tile of ROWS × COLUMNS of the product and loops over the inner dimension, DEPTH numbers at a time. Three buffers
// rotate: one is read while two are being filled. Each of the four warps computes a quarter of the tile.
//
// Compile-time definitions: COLUMNS (64 or 128), and LEFT_TRANSPOSED and RIGHT_TRANSPOSED (0 or 1). If set, the left operand is stored as
// [inner, rows] instead of [rows, inner], and the right one as [columns, inner] instead of [inner, columns]. With NARROW (0 or 1), the
// product is rounded to bf16.

typedef unsigned short bf16;
#if NARROW
typedef bf16 Number;
#else
typedef float Number;
#endif

// Writes the numbers of two neighboring columns, or only the first.
DEVICE void store(Number* to, float first, float second, bool is_second) {
#if NARROW
    u32 both = pack(first, second);
    to[0] = (bf16)both;
    if (is_second) to[1] = (bf16)(both >> 16);
#else
    to[0] = first;
    if (is_second) to[1] = second;
#endif
}

#define ROWS 128
#define DEPTH 32
#define PLACES 3
// Rows and columns per warp. The warps are arranged 2 × 2.
#define WARP_ROWS (ROWS / 2)
#define WARP_COLUMNS (COLUMNS / 2)
// Rows of tiles that are computed together, so that their inputs are still in the cache.
#define BAND 8

struct Sizes {
    u32 rows, columns, inner;
};

// Offset of 8 numbers of a row of `WIDTH`. The rows of an 8 × 8 matrix are in different banks.
template <int WIDTH> DEVICE int place(int row, int chunk) {
    int turn = WIDTH >= 64 ? row & 7 : row >> 1 & 3;
    return row * WIDTH + ((chunk ^ turn) << 3);
}

// Copies the tile of HEIGHT × WIDTH at row `row` and column `column` of a matrix of `rows` × `columns`.
template <int HEIGHT, int WIDTH> DEVICE void copy_tile(bf16* to, const bf16* x, u32 row, u32 column, u32 rows, u32 columns) {
    constexpr int CHUNKS = WIDTH / 8;
#pragma unroll
    for (int i = thread_index(); i < HEIGHT * CHUNKS; i += THREADS) {
        u32 r = i / CHUNKS, chunk = i % CHUNKS;
        bool is_there = row + r < rows && column + 8 * chunk < columns;
        copy_later(to + place<WIDTH>(r, chunk), x + (is_there ? (u64)(row + r) * columns + column + 8 * chunk : 0), is_there);
    }
}

#define LEFT_HEIGHT (LEFT_TRANSPOSED ? DEPTH : ROWS)
#define LEFT_WIDTH (LEFT_TRANSPOSED ? ROWS : DEPTH)
#define RIGHT_HEIGHT (RIGHT_TRANSPOSED ? COLUMNS : DEPTH)
#define RIGHT_WIDTH (RIGHT_TRANSPOSED ? DEPTH : COLUMNS)

// Loads the left operand: 16 rows from `row`, and 16 numbers of the inner dimension from `inner`.
DEVICE void left_of(u32 to[4], const bf16* tile, int row, int inner) {
    int lane = thread_index() % 32, matrix = lane / 8, of_matrix = lane % 8;
#if LEFT_TRANSPOSED
    load_transposed(to, tile + place<LEFT_WIDTH>(inner + matrix / 2 * 8 + of_matrix, row / 8 + matrix % 2));
#else
    load_matrices(to, tile + place<LEFT_WIDTH>(row + matrix % 2 * 8 + of_matrix, inner / 8 + matrix / 2));
#endif
}

// Loads the right operands: 2 × 8 columns from `column`.
DEVICE void right_of(u32 to[4], const bf16* tile, int column, int inner) {
    int lane = thread_index() % 32, matrix = lane / 8, of_matrix = lane % 8;
#if RIGHT_TRANSPOSED
    load_matrices(to, tile + place<RIGHT_WIDTH>(column + matrix / 2 * 8 + of_matrix, inner / 8 + matrix % 2));
#else
    load_transposed(to, tile + place<RIGHT_WIDTH>(inner + matrix % 2 * 8 + of_matrix, column / 8 + matrix / 2));
#endif
}

KERNEL BLOCKS(1) product(const bf16* left, const bf16* right, Number* out, Sizes of) {
    SHARED bf16 lefts[PLACES][ROWS * DEPTH];
    SHARED bf16 rights[PLACES][COLUMNS * DEPTH];
    u32 high = (of.rows + ROWS - 1) / ROWS, wide = (of.columns + COLUMNS - 1) / COLUMNS;
    // Tiles are numbered band by band, and within a band column by column.
    u32 band = block_x() / (BAND * wide), within = block_x() % (BAND * wide);
    u32 in_band = high - band * BAND < BAND ? high - band * BAND : BAND;
    u32 row = (band * BAND + within % in_band) * ROWS, column = within / in_band * COLUMNS;
    int warp = thread_index() / 32, lane = thread_index() % 32;
    int top = warp / 2 * WARP_ROWS, side = warp % 2 * WARP_COLUMNS;
    auto fetch = [&](u32 step) {
        u32 inner = step * DEPTH;
        if (inner < of.inner) {
#if LEFT_TRANSPOSED
            copy_tile<LEFT_HEIGHT, LEFT_WIDTH>(lefts[step % PLACES], left, inner, row, of.inner, of.rows);
#else
            copy_tile<LEFT_HEIGHT, LEFT_WIDTH>(lefts[step % PLACES], left, row, inner, of.rows, of.inner);
#endif
#if RIGHT_TRANSPOSED
            copy_tile<RIGHT_HEIGHT, RIGHT_WIDTH>(rights[step % PLACES], right, column, inner, of.columns, of.inner);
#else
            copy_tile<RIGHT_HEIGHT, RIGHT_WIDTH>(rights[step % PLACES], right, inner, column, of.inner, of.columns);
#endif
        }
        end_group();
    };
    fetch(0);
    fetch(1);
    float sums[WARP_ROWS / 16][WARP_COLUMNS / 8][4] = {};
    for (u32 step = 0; step * DEPTH < of.inner; step++) {
        wait_for_groups<1>();
        // All warps have finished with the buffer that is filled next.
        synchronize();
        fetch(step + 2);
        const bf16 *from_left = lefts[step % PLACES], *from_right = rights[step % PLACES];
#pragma unroll
        for (int inner = 0; inner < DEPTH; inner += 16) {
            u32 a[WARP_ROWS / 16][4], b[WARP_COLUMNS / 16][4];
#pragma unroll
            for (int i = 0; i < WARP_ROWS / 16; i++) left_of(a[i], from_left, top + 16 * i, inner);
#pragma unroll
            for (int j = 0; j < WARP_COLUMNS / 16; j++) right_of(b[j], from_right, side + 16 * j, inner);
#pragma unroll
            for (int i = 0; i < WARP_ROWS / 16; i++) {
#pragma unroll
                for (int j = 0; j < WARP_COLUMNS / 16; j++) {
                    multiply(sums[i][2 * j], a[i], b[j][0], b[j][1]);
                    multiply(sums[i][2 * j + 1], a[i], b[j][2], b[j][3]);
                }
            }
        }
    }
    wait_for_groups<0>();
#pragma unroll
    for (int i = 0; i < WARP_ROWS / 16; i++) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            u32 r = row + top + 16 * i + 8 * half + lane / 4;
            if (r >= of.rows) continue;
#pragma unroll
            for (int j = 0; j < WARP_COLUMNS / 8; j++) {
                u32 c = column + side + 8 * j + lane % 4 * 2;
                if (c >= of.columns) continue;
                store(out + (u64)r * of.columns + c, sums[i][j][2 * half], sums[i][j][2 * half + 1], c + 1 < of.columns);
            }
        }
    }
}
