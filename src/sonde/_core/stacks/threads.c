/* The threads that the sampler knows. */
#include "stacks/threads.h"

#include <stdlib.h>

static uint32_t place_of(uintptr_t state, uint32_t slots)
{
    return (uint32_t)(((uint64_t)(state >> 4) * 0x9e3779b97f4a7c15u) >> 40) & (slots - 1);
}

static void put_index(sonde_threads *threads, sonde_sampled_thread *thread)
{
    uint32_t at = place_of(thread->view.state, threads->slots);
    while (threads->index[at] != NULL)
        at = (at + 1) & (threads->slots - 1);
    threads->index[at] = thread;
}

sonde_sampled_thread *sonde_threads_find(const sonde_threads *threads, uintptr_t state)
{
    if (threads->slots == 0)
        return NULL;
    uint32_t at = place_of(state, threads->slots);
    for (sonde_sampled_thread *thread; (thread = threads->index[at]) != NULL;
         at = (at + 1) & (threads->slots - 1))
        if (thread->view.state == state)
            return thread;
    return NULL;
}

sonde_sampled_thread *sonde_threads_find_tid(const sonde_threads *threads, uint32_t tid)
{
    for (uint32_t i = 0; i < threads->count; i++)
        if (threads->list[i]->tid == tid && threads->list[i]->number == 0)
            return threads->list[i];
    return NULL;
}

/* Make room for one more in the list, and for twice that in the index. */
static int grow(sonde_threads *threads)
{
    uint32_t room = threads->room ? threads->room * 2 : 32;
    sonde_sampled_thread **list = realloc(threads->list, room * sizeof *list);
    if (list == NULL)
        return -1;
    threads->list = list;
    sonde_sampled_thread **index = calloc(room * 2, sizeof *index);
    if (index == NULL)
        return -1;
    free(threads->index);
    threads->index = index;
    threads->slots = room * 2;
    threads->room = room;
    for (uint32_t i = 0; i < threads->count; i++)
        put_index(threads, threads->list[i]);
    return 0;
}

sonde_sampled_thread *sonde_threads_add(sonde_threads *threads, uintptr_t state)
{
    if (threads->count == threads->room && grow(threads) < 0)
        return NULL;
    sonde_sampled_thread *thread = calloc(1, sizeof *thread);
    if (thread == NULL)
        return NULL;
    thread->view.state = state;
    thread->cpu_ns = -1;
    thread->queue_ns = -1;
    threads->list[threads->count++] = thread;
    put_index(threads, thread);
    return thread;
}

static void drop_index(sonde_threads *threads, const sonde_sampled_thread *thread)
{
    uint32_t mask = threads->slots - 1, at = place_of(thread->view.state, threads->slots);
    while (threads->index[at] != thread)
        at = (at + 1) & mask;
    threads->index[at] = NULL;
    /* The ones behind it may stand there only because it was in their way: put them in again. */
    for (at = (at + 1) & mask; threads->index[at] != NULL; at = (at + 1) & mask) {
        sonde_sampled_thread *moved = threads->index[at];
        threads->index[at] = NULL;
        put_index(threads, moved);
    }
}

static void free_thread(sonde_sampled_thread *thread)
{
    free(thread->view.outside);
    free(thread->inner.outside);
    free(thread->path);
    free(thread->loop);
    free(thread);
}

void sonde_threads_remove(sonde_threads *threads, uint32_t at)
{
    sonde_sampled_thread *thread = threads->list[at];
    drop_index(threads, thread);
    threads->list[at] = threads->list[--threads->count];
    free_thread(thread);
}

void sonde_threads_clear(sonde_threads *threads)
{
    for (uint32_t i = 0; i < threads->count; i++)
        free_thread(threads->list[i]);
    free(threads->list);
    free(threads->index);
    *threads = (sonde_threads){0};
}
