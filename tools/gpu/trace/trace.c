/* Records every kernel that a CUDA program runs: its name, its start and its end, on one line each.
 *
 * NVIDIA's driver loads this library into a program if CUDA_INJECTION64_PATH names it, and calls InitializeInjection. CUPTI reports the
 * kernels. TRACE names the file to write. `tools/gpu/run` sums it up.
 */
#include <cupti.h>
#include <stdio.h>
#include <stdlib.h>

static FILE *file;

static void requested(uint8_t **buffer, size_t *size, size_t *most)
{
    *size = 4 << 20;
    *most = 0;
    *buffer = aligned_alloc(8, *size);
}

static void completed(CUcontext context, uint32_t stream, uint8_t *buffer, size_t size, size_t valid)
{
    CUpti_Activity *record = NULL;
    (void)context, (void)stream, (void)size;
    while (cuptiActivityGetNextRecord(buffer, valid, &record) == CUPTI_SUCCESS) {
        if (record->kind == CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) {
            /* Versions of this record only append fields to it. */
            const CUpti_ActivityKernel11 *kernel = (const CUpti_ActivityKernel11 *)record;
            fprintf(file, "%llu %llu %u %d %d %d %s\n", (unsigned long long)kernel->start, (unsigned long long)kernel->end, kernel->streamId,
                    kernel->gridX, kernel->gridY, kernel->gridZ, kernel->name);
        } else if (record->kind == CUPTI_ACTIVITY_KIND_MEMCPY || record->kind == CUPTI_ACTIVITY_KIND_MEMSET) {
            const CUpti_ActivityMemset4 *filled = (const CUpti_ActivityMemset4 *)record;
            const CUpti_ActivityMemcpy6 *copied = (const CUpti_ActivityMemcpy6 *)record;
            if (record->kind == CUPTI_ACTIVITY_KIND_MEMCPY)
                fprintf(file, "%llu %llu %u 0 0 0 memcpy_%d\n", (unsigned long long)copied->start, (unsigned long long)copied->end,
                        copied->streamId, copied->copyKind);
            else
                fprintf(file, "%llu %llu %u 0 0 0 memset\n", (unsigned long long)filled->start, (unsigned long long)filled->end,
                        filled->streamId);
        }
    }
    free(buffer);
}

static void at_end(void)
{
    cuptiActivityFlushAll(1);
    fclose(file);
}

int InitializeInjection(void)
{
    const char *path = getenv("TRACE");
    file = path ? fopen(path, "w") : NULL;
    if (!file) {
        fprintf(stderr, "trace: set TRACE to a file that can be written\n");
        return 0;
    }
    setvbuf(file, NULL, _IOFBF, 1 << 20);
    cuptiActivityRegisterCallbacks(requested, completed);
    CUptiResult result = cuptiActivityEnable(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL);
    cuptiActivityEnable(CUPTI_ACTIVITY_KIND_MEMCPY);
    cuptiActivityEnable(CUPTI_ACTIVITY_KIND_MEMSET);
    if (result != CUPTI_SUCCESS)
        fprintf(stderr, "trace: CUPTI cannot record kernels: error %d\n", result);
    atexit(at_end);
    return 1;
}
