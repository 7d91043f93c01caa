/* The Python objects of the torch tracer. Everything here needs the GIL. */
#ifndef SONDE_TORCH_CALL_H
#define SONDE_TORCH_CALL_H

#include "torch/torch.h"

typedef struct {
    const void *address; /* NULL: free; &sonde_torch_gone: the module was forgotten */
    uint32_t name;       /* text id */
    uint32_t key;        /* from 1 on; 0 is no module */
    int ignored;         /* the user does not want to see it */
} sonde_torch_module;

typedef struct {
    sonde_torch_module *slots;
    size_t room, used; /* room: 0 or a power of two; used: includes forgotten ones */
} sonde_torch_modules;

static inline size_t sonde_torch_hash(const void *address)
{
    return (size_t)(((uintptr_t)address >> 4) * UINT64_C(0x9E3779B97F4A7C15) >> 20);
}

typedef struct {
    PyObject_HEAD
    PyObject *text, *map, *page_map;
    const sonde_control *page;
    PyObject *name;     /* name(module, parent key): calls add_module */
    PyObject *end;      /* end(): a call of the program ends the step */
    PyObject *is_grad;  /* torch.is_grad_enabled */
    PyObject *memory;   /* memory() -> allocated, max_allocated, cached; or NULL */
    PyObject *process;  /* a TorchMemory: memory is that of the process; or NULL: a device is used */
    float recent[3];    /* its last reading, and when that was */
    int64_t recent_ns;
    PyObject *describe; /* describe(*inputs) -> text; or NULL: not wanted */
    sonde_torch_modules modules;
    sonde_torch_texts texts;
    int is_fresh;          /* there are named modules that nobody has described yet */
} sonde_TorchTracer;

extern sonde_TorchTracer *sonde_torch_tracer; /* the one that runs, or NULL; borrowed */

/* Tell how much memory the process has in MB, as it was at most 5 ms before `now_ns`: allocated,
 * the most so far, cached. Returns 0, or -1 if a device is used or the kernel does not tell. */
int sonde_torch_recent_memory(sonde_TorchTracer *self, int64_t now_ns, float values[3]);

/* The program calls a model, which may end a step and begin the next one: root_call.c. Returns 0, or
 * -1 with an exception of the program. */
int sonde_torch_begin_root(PyObject *module, sonde_torch_lane *lane);

/* What to record of a step. */
typedef struct {
    int on, depth, device, memory_depth, roots; /* as in sonde_torch_state */
} sonde_torch_wish;

/* The sums of a step that is over. */
typedef struct {
    int64_t first_ns, forward_ns, backward_ns, owned_ns, unowned_ns, direct_ns;
    uint32_t calls, lost, events, nodes;
    int had_backward;
    uint32_t models, passes; /* calls of models by the program, and backward passes */
} sonde_torch_sums;

/* End a step, which was over at `end_ns`, and begin this one. */
void sonde_torch_begin(sonde_TorchTracer *tracer, int64_t step, int64_t end_ns, const sonde_torch_wish *wish,
                       sonde_torch_sums *ended);
PyObject *sonde_torch_begins(void); /* when the backward passes of this step began: a tuple */

#endif
