/* Functions that call each other and then the C library for memory: a chain that a test knows. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

/* What is done afterwards keeps the compiler from replacing a call by a jump. */
__attribute__((noinline)) static char *sonde_test_inner(size_t bytes)
{
    char *block = malloc(bytes);
    if (block != NULL)
        block[0] = 1;
    return block;
}

__attribute__((noinline)) void *sonde_test_outer(size_t bytes)
{
    char *block = sonde_test_inner(bytes);
    if (block != NULL)
        block[bytes - 1] = 2;
    return block;
}

/* The same by another way, with room on the stack whose size nobody knows before. */
__attribute__((noinline)) void *sonde_test_other(size_t bytes)
{
    volatile char room[bytes % 4096 + 6000];
    memset((void *)room, 1, sizeof room);
    char *block = sonde_test_inner(bytes);
    if (block != NULL)
        block[1] = room[5000];
    return block;
}

static void *sonde_test_begin(void *bytes)
{
    char *block = sonde_test_outer(*(size_t *)bytes);
    if (block != NULL)
        block[2] = 3;
    return block;
}

/* Allocate in a thread that runs no Python. */
void *sonde_test_thread(size_t bytes)
{
    pthread_t thread;
    void *block = NULL;
    if (pthread_create(&thread, NULL, sonde_test_begin, &bytes) == 0)
        pthread_join(thread, &block);
    return block;
}

void sonde_test_give(void *block) { free(block); }
