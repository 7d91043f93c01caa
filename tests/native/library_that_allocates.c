/* A library that asks the C library for memory, in each way in which a library calls another. */
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>

void *(*by_pointer)(size_t) = malloc; /* a word of data that begins as an address */

void *take(size_t bytes) { return malloc(bytes); }
void *take_by_pointer(size_t bytes) { return by_pointer(bytes); }
void *take_zeros(size_t bytes) { return calloc(1, bytes); }
void *enlarge(void *block, size_t bytes) { return realloc(block, bytes); }
void give(void *block) { free(block); }

void *take_aligned(size_t bytes)
{
    void *block = NULL;
    return posix_memalign(&block, 4096, bytes) == 0 ? block : NULL;
}

/* Allocates and frees many times, as a worker without the GIL does. Returns 0 if every block was as it should be. */
int churn(int times)
{
    for (int i = 0; i < times; i++) {
        size_t bytes = 1 + (size_t)i * 37 % 5000;
        unsigned char *block = malloc(bytes), *zeros = calloc(bytes, 1);
        if (block == NULL || zeros == NULL || zeros[bytes - 1] != 0)
            return 1;
        block[bytes - 1] = 7;
        block = realloc(block, 2 * bytes);
        if (block == NULL || block[bytes - 1] != 7)
            return 2;
        free(zeros);
        free(block);
    }
    return 0;
}

/* What it would call now. */
void *find_malloc(void) { return (void *)malloc; }

extern const char _DYNAMIC[]; /* in the part that the loader makes read-only */

/* Make that part writable for good, as a tool does that has changed slots in it. */
int unseal(void)
{
    uintptr_t page = (uintptr_t)_DYNAMIC & ~(uintptr_t)4095;
    return mprotect((void *)page, 2 * 4096, PROT_READ | PROT_WRITE);
}
