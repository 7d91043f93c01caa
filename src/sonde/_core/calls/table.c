/* The tables of the call tracer: what each thread keeps. */
#include "calls/calls.h"

#include <stdlib.h>

/* ---- nodes, edges and links ------------------------------------------------------ */

static size_t hash_node(const void *item)
{
    return sonde_hash(((const sonde_called *)item)->function, NULL);
}

static size_t hash_edge(const void *item)
{
    const sonde_edge *edge = item;
    return sonde_hash(edge->caller, edge->key);
}

static size_t hash_link(const void *item)
{
    const sonde_link *link = item;
    return sonde_hash(link->caller, link->callee);
}

static sonde_called *node_get(const sonde_call_thread *calls, const sonde_function *function)
{
    const sonde_set *set = &calls->nodes;
    if (set->size == 0)
        return NULL;
    size_t at = sonde_hash(function, NULL) & (set->size - 1);
    for (; set->slots[at] != NULL; at = (at + 1) & (set->size - 1)) {
        sonde_called *node = set->slots[at];
        if (node->function == function)
            return node;
    }
    return NULL;
}

sonde_called *sonde_called_find(sonde_call_thread *calls, sonde_function *function)
{
    sonde_called *node = node_get(calls, function);
    if (node != NULL)
        return node;
    node = calloc(1, sizeof *node);
    if (node == NULL)
        return NULL;
    node->function = function;
    node->recent = &calls->below;
    if (sonde_set_add(&calls->nodes, hash_node, node) == 0)
        return node;
    free(node);
    return NULL;
}

sonde_link *sonde_link_find(sonde_function *caller, sonde_function *callee)
{
    sonde_set *set = &sonde_calls.links;
    for (size_t at = sonde_hash(caller, callee); set->size != 0; at++) {
        sonde_link *link = set->slots[at & (set->size - 1)];
        if (link == NULL)
            break;
        if (link->caller == caller && link->callee == callee)
            return link;
    }
    sonde_link *link = calloc(1, sizeof *link);
    if (link == NULL)
        return NULL;
    link->caller = caller;
    link->callee = callee;
    if (sonde_set_add(set, hash_link, link) == 0)
        return link;
    free(link);
    return NULL;
}

static sonde_edge *edge_get(const sonde_call_thread *calls, const sonde_called *caller, const void *key)
{
    const sonde_set *set = &calls->edges;
    for (size_t at = sonde_hash(caller, key); set->size != 0; at++) {
        sonde_edge *edge = set->slots[at & (set->size - 1)];
        if (edge == NULL || (edge->key == key && edge->caller == caller))
            return edge;
    }
    return NULL;
}

static sonde_edge *edge_between(sonde_call_thread *calls, sonde_called *caller, sonde_function *callee)
{
    sonde_edge *edge = edge_get(calls, caller, callee->key);
    if (edge != NULL)
        return edge;
    edge = calloc(1, sizeof *edge);
    if (edge == NULL)
        return NULL;
    edge->key = callee->key;
    edge->caller = caller;
    edge->callee = sonde_called_find(calls, callee);
    edge->link = sonde_link_find(caller->function, callee);
    edge->is_coroutine = callee->is_coroutine;
    if (edge->callee != NULL && edge->link != NULL &&
        sonde_set_add(&calls->edges, hash_edge, edge) == 0)
        return edge;
    free(edge);
    return NULL;
}

sonde_edge *sonde_edge_find(sonde_call_thread *calls, sonde_called *caller, const sonde_callee *callee)
{
    sonde_edge *edge = edge_get(calls, caller, callee->key);
    if (edge != NULL)
        return edge;
    sonde_function *function = sonde_function_find(callee);
    return function == NULL ? NULL : edge_between(calls, caller, function);
}

/* ---- threads ------------------------------------------------------------------------- */

sonde_call_thread *sonde_call_thread_make(unsigned long ident, uint64_t state_id)
{
    enum { FIRST_DEPTH = 64 };
    sonde_call_thread *calls = calloc(1, sizeof *calls);
    if (calls == NULL)
        return NULL;
    calls->stack = malloc(FIRST_DEPTH * sizeof *calls->stack);
    if (calls->stack == NULL) {
        free(calls);
        return NULL;
    }
    calls->owners = 1;
    calls->ident = ident;
    calls->state_id = state_id;
    calls->top = calls->stack;
    calls->limit = calls->stack + FIRST_DEPTH;
    calls->last = sonde_calls.begin.ticks;
    calls->below.callee = &calls->bottom;
    calls->bottom.recent = &calls->below;
    *calls->top = (sonde_call){.edge = &calls->below};
    calls->next = sonde_calls.threads;
    sonde_calls.threads = calls;
    return calls;
}

static void leave_top(sonde_call_thread *calls)
{
    if (calls->top->edge->is_coroutine)
        sonde_await_leave(calls, NULL, 0);
    else
        sonde_leave(calls);
}

int sonde_call_thread_grow(sonde_call_thread *calls)
{
    ptrdiff_t depth = calls->top - calls->stack;
    if (depth >= SONDE_MAX_CALLS) {
        /* Python does not go this deep: those calls must have ended without our noticing. */
        while (calls->top > calls->stack)
            leave_top(calls);
        return 0;
    }
    size_t size = 2 * (size_t)(calls->limit - calls->stack);
    sonde_call *stack = realloc(calls->stack, size * sizeof *stack);
    if (stack == NULL)
        return -1;
    calls->stack = stack;
    calls->top = stack + depth;
    calls->limit = stack + size;
    return 0;
}

void sonde_call_thread_fold(sonde_call_thread *calls)
{
    while (calls->stack != NULL && calls->top > calls->stack)
        leave_top(calls);
    for (size_t i = 0; i < calls->nodes.size; i++) {
        const sonde_called *node = calls->nodes.slots[i];
        if (node != NULL) {
            node->function->past.recursive += node->recursive;
            node->function->past.total += node->total;
        }
    }
    for (size_t i = 0; i < calls->edges.size; i++) {
        const sonde_edge *edge = calls->edges.slots[i];
        if (edge != NULL) {
            edge->link->past.calls += edge->numbers.calls;
            edge->link->past.recursive += edge->numbers.recursive;
            edge->link->past.own += edge->numbers.own;
            edge->link->past.total += edge->numbers.total;
        }
    }
    sonde_set_clear(&calls->nodes, free);
    sonde_set_clear(&calls->edges, free);
    free(calls->stack);
    calls->stack = NULL;
}

void sonde_call_thread_release(sonde_call_thread *calls)
{
    /* Ordered: whoever frees it does so after everything that the other owner did with it. */
    if (sonde_decrement_ordered(&calls->owners) == 0)
        free(calls);
}

void sonde_calls_clear(void)
{
    sonde_call_state gone = sonde_calls;
    sonde_calls = (sonde_call_state){.epoch = gone.epoch + 1, .publish_at = INT64_MAX};
    for (sonde_call_thread *calls = gone.threads, *next; calls != NULL; calls = next) {
        next = calls->next;
        sonde_set_clear(&calls->nodes, free);
        sonde_set_clear(&calls->edges, free);
        free(calls->stack);
        calls->stack = NULL;
        sonde_call_thread_release(calls);
    }
    sonde_set_clear(&gone.links, free);
    sonde_set_clear(&gone.awaited, free);
    sonde_set_clear(&gone.labels, NULL);
    sonde_set_clear(&gone.functions, sonde_function_free);
    if (gone.crowd != NULL)
        sonde_function_free(gone.crowd);
    Py_XDECREF(gone.muted);
}

/* ---- events that are not the plain case ----------------------------------------------- */

void sonde_leave_other(sonde_call_thread *calls, const void *key, const void *frame, int ended)
{
    const sonde_function *function = sonde_function_get(key);
    if (function == NULL) {
        if (sonde_calls.crowd != NULL && calls->top->edge->key == sonde_calls.crowd->key)
            sonde_leave(calls);
        return;
    }
    const sonde_called *node = node_get(calls, function);
    if (node == NULL || node->level == 0)
        return; /* it was running before we started, or on another stack */
    while (calls->top->edge->key != key)
        leave_top(calls);
    if (calls->top->edge->is_coroutine)
        sonde_await_leave(calls, frame, ended);
    else
        sonde_leave(calls);
}

static size_t hash_awaited(const void *item)
{
    return sonde_hash(((const sonde_awaited *)item)->frame, NULL);
}

/* Return the place of a frame's record, or -1. */
static ptrdiff_t find_awaited(const void *frame)
{
    const sonde_set *set = &sonde_calls.awaited;
    for (size_t at = sonde_hash(frame, NULL); set->size != 0; at++) {
        const sonde_awaited *awaited = set->slots[at & (set->size - 1)];
        if (awaited == NULL)
            break;
        if (awaited->frame == frame)
            return (ptrdiff_t)(at & (set->size - 1));
    }
    return -1;
}

/* End the call of a coroutine. Its time is added to the numbers of all threads, as it may have
 * begun in another thread. */
static void await_end(ptrdiff_t at, int64_t now)
{
    sonde_awaited *awaited = sonde_calls.awaited.slots[at];
    sonde_link *link = sonde_link_find(awaited->caller, awaited->callee);
    int64_t total = now > awaited->start ? now - awaited->start : 0;
    if (link != NULL) {
        link->past.calls++;
        link->past.recursive += !awaited->is_outer_edge;
        link->past.total += awaited->is_outer_edge ? total : 0;
        link->callee->past.recursive += !awaited->is_outer_call;
        link->callee->past.total += awaited->is_outer_call ? total : 0;
    }
    sonde_set_remove(&sonde_calls.awaited, hash_awaited, (size_t)at);
    free(awaited);
}

void sonde_await_begin(sonde_call_thread *calls, const void *frame, int is_new)
{
    const sonde_edge *edge = calls->top->edge;
    ptrdiff_t at = find_awaited(frame);
    if (at >= 0 && !is_new)
        return;
    if (at >= 0)
        await_end(at, calls->last); /* of an earlier coroutine here, whose end we missed */
    sonde_awaited *awaited = malloc(sizeof *awaited);
    if (awaited == NULL)
        return;
    *awaited = (sonde_awaited){
        .frame = frame,
        .start = is_new ? calls->last : sonde_calls.begin.ticks,
        .caller = edge->link->caller,
        .callee = edge->link->callee,
        .is_outer_call = edge->callee->level == 1,
        .is_outer_edge = edge->level == 1,
    };
    if (sonde_set_add(&sonde_calls.awaited, hash_awaited, awaited) < 0)
        free(awaited);
}

void sonde_await_leave(sonde_call_thread *calls, const void *frame, int ended)
{
    sonde_call *top = calls->top;
    sonde_edge *edge = top->edge;
    int64_t total = calls->last - top->start;
    edge->numbers.own += total - top->inner;
    edge->level--;
    edge->callee->level--;
    top[-1].inner += total;
    calls->top = top - 1;
    ptrdiff_t at = ended ? find_awaited(frame) : -1;
    if (at >= 0)
        await_end(at, calls->last);
}
