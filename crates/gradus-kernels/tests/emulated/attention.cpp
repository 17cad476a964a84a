// Runs a kernel of `src/gpu/cuda/attention.cu` on a CPU. Standard input: number of the kernel, grid, 1 if copies are late, the scalars,
// and the buffers, each preceded by its length. Standard output: the buffers.
#include "emulator.h"

#include "../../src/gpu/cuda/attention.cu"

template <typename T> static T read_one() {
    T value;
    if (fread(&value, sizeof value, 1, stdin) != 1) {
        fprintf(stderr, "the input ended early\n");
        exit(1);
    }
    return value;
}

int main() {
    u32 kernel = read_one<u32>(), columns = read_one<u32>(), rows = read_one<u32>(), is_late = read_one<u32>();
    Scalars of = read_one<Scalars>();
    std::vector<std::vector<char>> buffers(read_one<u32>());
    for (auto& buffer : buffers) {
        buffer.resize(read_one<u32>());
        if (!buffer.empty() && fread(buffer.data(), buffer.size(), 1, stdin) != 1) return 1;
    }
    auto at = [&](int i) { return (void*)buffers.at(i).data(); };
    auto half = [&](int i) { return (const bf16*)at(i); };
    auto number = [&](int i) { return (float*)at(i); };
    auto word = [&](int i) { return (const u32*)at(i); };
    for (u32 y = 0; y < rows; y++) {
        for (u32 x = 0; x < columns; x++) {
            emulated::run(x, y, columns, is_late, [&] {
                switch (kernel) {
                    case 0: attention_forward(half(0), half(1), half(2), word(3), (bf16*)at(4), number(5), of); break;
                    case 1:
                        attention_backward_queries(half(0), half(1), half(2), half(3), number(4), number(5), word(6), number(7), of);
                        break;
                    default:
                        attention_backward_keys(half(0), half(1), half(2), half(3), number(4), number(5), word(6), word(7), number(8),
                                                number(9), of);
                }
            });
        }
    }
    for (auto& buffer : buffers) fwrite(buffer.data(), 1, buffer.size(), stdout);
}
