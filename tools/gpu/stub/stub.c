// NVIDIA's driver, NVRTC and cuBLASLt without a GPU, as far as CubeCL and gradus call them. Memory is the machine's own, and kernels and
// products do nothing. What is left of a run is the work of the processor: preparing and queuing kernels. Results are zeros.
//
// At the end of the process, the calls and the launches of each kernel go to standard error.

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

typedef int Result;

#define SUCCESS 0
#define OUT_OF_MEMORY 2
#define NOT_SUPPORTED 801

// Calls, in the order of the report.
#define CALLS(X)                                                                                                                           \
    X(launches) X(products) X(allocations) X(frees) X(to_device) X(to_host) X(on_device) X(events) X(stream_waits) X(context_events)       \
    X(context_waits) X(waits_of_host)

#define ENTRY(name) name,
enum Call { CALLS(ENTRY) COUNT };
#define NAME(name) #name,
static const char* const names[COUNT] = {CALLS(NAME)};
static unsigned long counts[COUNT];

static void count(enum Call call) { __atomic_fetch_add(&counts[call], 1, __ATOMIC_RELAXED); }

// A kernel that was loaded. Only one thread loads and launches kernels.
struct Kernel {
    char name[96];
    unsigned long launches;
    struct Kernel* next;
};
static struct Kernel* kernels;

static int more_launches(const void* a, const void* b) {
    unsigned long left = (*(struct Kernel* const*)a)->launches, right = (*(struct Kernel* const*)b)->launches;
    return left < right ? 1 : left > right ? -1 : strcmp((*(struct Kernel* const*)a)->name, (*(struct Kernel* const*)b)->name);
}

__attribute__((destructor)) static void report(void) {
    if (counts[launches] == 0) return;
    for (int i = 0; i < COUNT; i++) fprintf(stderr, "%10lu %s\n", counts[i], names[i]);
    size_t n = 0;
    for (struct Kernel* kernel = kernels; kernel; kernel = kernel->next) n++;
    struct Kernel** all = calloc(n, sizeof *all);
    n = 0;
    for (struct Kernel* kernel = kernels; kernel; kernel = kernel->next) all[n++] = kernel;
    qsort(all, n, sizeof *all, more_launches);
    for (size_t i = 0; i < n && all[i]->launches > 0; i++) fprintf(stderr, "%10lu launches of %s\n", all[i]->launches, all[i]->name);
}

// Objects that nothing looks into.
static char object[64];
static Result give(void** to) {
    *to = object;
    return SUCCESS;
}

// The driver: an H200.
#define GIB ((size_t)1 << 30)
Result cuInit(unsigned flags) { return SUCCESS; }
Result cuDriverGetVersion(int* version) { return *version = 13000, SUCCESS; }
Result cuDeviceGet(int* device, int number) { return *device = number, SUCCESS; }
Result cuDeviceGetCount(int* devices) { return *devices = 1, SUCCESS; }
Result cuDeviceGetName(char* name, int size, int device) { return snprintf(name, size, "NVIDIA H200"), SUCCESS; }
Result cuDeviceTotalMem_v2(size_t* bytes, int device) { return *bytes = 141 * GIB, SUCCESS; }
Result cuMemGetInfo_v2(size_t* unused, size_t* total) { return *unused = 140 * GIB, *total = 141 * GIB, SUCCESS; }
Result cuDeviceGetPCIBusId(char* id, int size, int device) { return snprintf(id, size, "0000:01:00.0"), SUCCESS; }
Result cuDeviceGetLuid(char* id, unsigned* mask, int device) { return NOT_SUPPORTED; }
Result cuDeviceGetUuid_v2(char* id, int device) { return memset(id, 1, 16), SUCCESS; }
Result cuDeviceGetAttribute(int* value, int attribute, int device) {
    switch (attribute) {
        case 1: case 2: *value = 1024; break;         // threads of a block, and in x
        case 3: *value = 1024; break;                 // in y
        case 4: *value = 64; break;                   // in z
        case 5: *value = 0x7fffffff; break;           // blocks in x
        case 6: case 7: *value = 65535; break;        // in y and z
        case 8: *value = 49152; break;                // bytes of shared memory of a block
        case 10: *value = 32; break;                  // threads of a warp
        case 16: *value = 132; break;                 // multiprocessors
        case 75: *value = 9; break;                   // compute capability 9.0
        case 76: *value = 0; break;
        case 97: *value = 232448; break;              // bytes of shared memory on request
        default: *value = 1;
    }
    return SUCCESS;
}
Result cuDevicePrimaryCtxRetain(void** context, int device) { return give(context); }
Result cuDevicePrimaryCtxRelease_v2(int device) { return SUCCESS; }
Result cuCtxSetCurrent(void* context) { return SUCCESS; }
Result cuCtxGetCurrent(void** context) { return give(context); }
Result cuCtxGetStreamPriorityRange(int* least, int* greatest) { return *least = *greatest = 0, SUCCESS; }
Result cuCtxRecordEvent(void* context, void* event) { return count(context_events), SUCCESS; }
Result cuCtxWaitEvent(void* context, void* event) { return count(context_waits), SUCCESS; }
Result cuStreamCreate(void** stream, unsigned flags) { return give(stream); }
Result cuStreamCreateWithPriority(void** stream, unsigned flags, int priority) { return give(stream); }
Result cuStreamDestroy_v2(void* stream) { return SUCCESS; }
Result cuStreamSynchronize(void* stream) { return count(waits_of_host), SUCCESS; }
Result cuStreamWaitEvent(void* stream, void* event, unsigned flags) { return count(stream_waits), SUCCESS; }
Result cuEventCreate(void** event, unsigned flags) { return give(event); }
Result cuEventDestroy_v2(void* event) { return SUCCESS; }
Result cuEventRecord(void* event, void* stream) { return count(events), SUCCESS; }
Result cuEventSynchronize(void* event) { return count(waits_of_host), SUCCESS; }
Result cuEventElapsedTime_v2(float* ms, void* from, void* to) { return *ms = 0.01f, SUCCESS; }
Result cuEventElapsedTime(float* ms, void* from, void* to) { return *ms = 0.01f, SUCCESS; }
Result cuGetErrorName(Result error, const char** name) { return *name = "an error of the stub", SUCCESS; }
Result cuGetErrorString(Result error, const char** text) { return *text = "an error of the stub", SUCCESS; }

// Memory. Pages that nothing writes cost nothing, so a large model fits. They stay mapped, because a copy may still read them.
Result cuMemAlloc_v2(void** to, size_t bytes) {
    count(allocations);
    *to = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return *to == MAP_FAILED ? OUT_OF_MEMORY : SUCCESS;
}
Result cuMemAllocAsync(void** to, size_t bytes, void* stream) { return cuMemAlloc_v2(to, bytes); }
Result cuMemFree_v2(void* memory) { return count(frees), SUCCESS; }
Result cuMemFreeAsync(void* memory, void* stream) { return count(frees), SUCCESS; }
Result cuMemAllocHost_v2(void** to, size_t bytes) { return (*to = malloc(bytes)) ? SUCCESS : OUT_OF_MEMORY; }
Result cuMemFreeHost(void* memory) { return free(memory), SUCCESS; }
// Weights are not copied: nothing reads them.
#define LARGE 65536
Result cuMemcpyHtoDAsync_v2(void* to, const void* from, size_t bytes, void* stream) {
    count(to_device);
    if (bytes < LARGE) memcpy(to, from, bytes);
    return SUCCESS;
}
Result cuMemcpyDtoHAsync_v2(void* to, const void* from, size_t bytes, void* stream) {
    count(to_host);
    memcpy(to, from, bytes);
    return SUCCESS;
}
Result cuMemcpyDtoDAsync_v2(void* to, const void* from, size_t bytes, void* stream) { return count(on_device), SUCCESS; }
// One side of `CUDA_MEMCPY2D`: type 1 is the host.
struct Side {
    size_t column, row;
    int type;
    char* host;
    char* device;
    void* array;
    size_t pitch;
};
struct Copy {
    struct Side from, to;
    size_t width, height;
};
static char* start(const struct Side* side) {
    return (side->type == 1 ? side->host : side->device) + side->row * side->pitch + side->column;
}
Result cuMemcpy2DAsync_v2(const struct Copy* copy, void* stream) {
    count(copy->from.type == 1 ? to_device : copy->to.type == 1 ? to_host : on_device);
    if (copy->from.type == 1 && copy->width * copy->height >= LARGE) return SUCCESS;
    for (size_t i = 0; i < copy->height; i++) {
        memcpy(start(&copy->to) + i * copy->to.pitch, start(&copy->from) + i * copy->from.pitch, copy->width);
    }
    return SUCCESS;
}

// Kernels.
Result cuModuleLoadData(void** module, const void* data) { return give(module); }
Result cuModuleUnload(void* module) { return SUCCESS; }
Result cuModuleGetFunction(void** function, void* module, const char* name) {
    struct Kernel* kernel = calloc(1, sizeof *kernel);
    if (!kernel) return OUT_OF_MEMORY;
    snprintf(kernel->name, sizeof kernel->name, "%s", name);
    kernel->next = kernels;
    kernels = kernel;
    *function = kernel;
    return SUCCESS;
}
Result cuFuncSetAttribute(void* function, int attribute, int value) { return SUCCESS; }
Result cuLaunchKernel(struct Kernel* kernel, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared,
                      void* stream, void** arguments, void** extra) {
    kernel->launches++;
    return count(launches), SUCCESS;
}

// NVRTC.
Result nvrtcVersion(int* major, int* minor) { return *major = 13, *minor = 0, SUCCESS; }
Result nvrtcCreateProgram(void** program, const char* text, const char* name, int n, const char* const* headers, const char* const* files) {
    return give(program);
}
Result nvrtcCompileProgram(void* program, int n, const char* const* options) { return SUCCESS; }
Result nvrtcGetPTXSize(void* program, size_t* bytes) { return *bytes = 1, SUCCESS; }
Result nvrtcGetPTX(void* program, char* text) { return *text = 0, SUCCESS; }
Result nvrtcGetProgramLogSize(void* program, size_t* bytes) { return *bytes = 1, SUCCESS; }
Result nvrtcGetProgramLog(void* program, char* text) { return *text = 0, SUCCESS; }
Result nvrtcDestroyProgram(void** program) { return SUCCESS; }
const char* nvrtcGetErrorString(Result error) { return "an error of the stub"; }

// cuBLASLt.
#define RESULT_BYTES 96
size_t cublasLtGetVersion(void) { return 130000; }
Result cublasLtCreate(void** handle) { return give(handle); }
Result cublasLtMatmulDescCreate(void** product, int compute, int scale) { return give(product); }
Result cublasLtMatmulDescSetAttribute(void* product, int attribute, const void* value, size_t bytes) { return SUCCESS; }
Result cublasLtMatrixLayoutCreate(void** matrix, int type, uint64_t rows, uint64_t columns, int64_t stride) { return give(matrix); }
Result cublasLtMatrixLayoutSetAttribute(void* matrix, int attribute, const void* value, size_t bytes) { return SUCCESS; }
Result cublasLtMatmulPreferenceCreate(void** search) { return give(search); }
Result cublasLtMatmulPreferenceSetAttribute(void* search, int attribute, const void* value, size_t bytes) { return SUCCESS; }
Result cublasLtMatmulPreferenceDestroy(void* search) { return SUCCESS; }
Result cublasLtMatmulAlgoGetHeuristic(void* handle, void* product, void* a, void* b, void* c, void* d, void* search, int most, char* found,
                                      int* n) {
    memset(found, 0, RESULT_BYTES);
    return *n = 1, SUCCESS;
}
Result cublasLtMatmulAlgoConfigGetAttribute(const void* algorithm, int attribute, void* value, size_t bytes, size_t* written) {
    memset(value, 0, bytes);
    return *written = bytes, SUCCESS;
}
Result cublasLtMatmul(void) { return count(products), SUCCESS; }
