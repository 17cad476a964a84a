// Runs the kernel of `src/gpu/cuda/product.cu` on a CPU. Standard input: the number of blocks, 1 if copies are late, three sizes, and both
// operands. Standard output: the product, in f32.
#include "emulator.h"

#include "../../src/gpu/cuda/product.cu"

template <typename T> static void read_all(T* to, size_t count) {
    if (fread(to, sizeof(T), count, stdin) != count) {
        fprintf(stderr, "the input ended early\n");
        exit(1);
    }
}

int main() {
    u32 head[2];
    Sizes of;
    read_all(head, 2);
    read_all(&of, 1);
    std::vector<bf16> left((size_t)of.rows * of.inner), right((size_t)of.inner * of.columns);
    read_all(left.data(), left.size());
    read_all(right.data(), right.size());
    std::vector<Number> out((size_t)of.rows * of.columns, (Number)-1);
    for (u32 x = 0; x < head[0]; x++) {
        emulated::run(x, 0, head[0], head[1], [&] { product(left.data(), right.data(), out.data(), of); });
    }
    for (Number number : out) {
#if NARROW
        u32 bits = (u32)number << 16;
        fwrite(&bits, sizeof(bits), 1, stdout);
#else
        fwrite(&number, sizeof(number), 1, stdout);
#endif
    }
}
