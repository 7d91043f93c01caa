/* PyTorch's modules, seen from C: what the files of this folder share.
 *
 * A thread that calls modules, or runs nodes of autograd's graph, has a lane: a ring of calls in
 * the order in which they began. Only its own thread adds to it. When a step is over, the
 * writer's thread turns its calls into rows.
 */
#ifndef SONDE_TORCH_H
#define SONDE_TORCH_H

#include "binding/binding.h"

#include <pthread.h>

#define SONDE_TORCH_CALLS (1u << 15) /* calls of a lane that have no rows yet; a power of two */
#define SONDE_TORCH_SPANS (1u << 14) /* changes of owner of a lane, in backward on a device */
#define SONDE_TORCH_DEEP 64          /* nodes inside nodes */
#define SONDE_TORCH_LANES 1024
#define SONDE_TORCH_BEGINS 256
#define SONDE_TORCH_NONE UINT64_MAX

enum { SONDE_TORCH_FORWARD, SONDE_TORCH_RECOMPUTE };
enum { SONDE_TORCH_RAISED = 1, SONDE_TORCH_MEMORY = 2, SONDE_TORCH_BY_HOST = 4, SONDE_TORCH_OWN = 8 };
/* What is timed on the device in a step: forward, backward; and which of these by the host's
 * clock, because the device keeps up with the host: see device_pace.c. */
enum { SONDE_DEVICE_FORWARD = 1, SONDE_DEVICE_BACKWARD = 2, SONDE_DEVICE_BY_HOST = 4 };
#define SONDE_DEVICE_IS_BY_HOST(device, way) (((device) & (way) * SONDE_DEVICE_BY_HOST) != 0)

typedef struct {
    int64_t enter_ns;
    int64_t exit_ns;      /* atomic; 0: in progress */
    int64_t inner_ns;     /* in the calls inside it */
    uint64_t seq_enter;   /* autograd's numbers: its own nodes are from here … */
    uint64_t seq_exit;    /* … to before here */
    int64_t step;
    uint64_t parent;      /* the call around it, or SONDE_TORCH_NONE */
    int64_t back_ns;      /* atomic; time spent in its own nodes */
    int64_t back_begin_ns; /* atomic; 0: no node of its own has run */
    double back_device_s; /* the writer's; below 0: not known */
    uint32_t module;      /* text id of its name */
    uint32_t key;         /* which module */
    uint32_t shapes;      /* text id; 0: not asked for */
    uint32_t nth;         /* the writer's: which call of this module in its step */
    int32_t events[2];    /* at its beginning and end; -1: none */
    float memory[3];
    uint16_t depth;
    uint8_t stage;
    uint8_t flags;
    int8_t back_device; /* the writer's: the device that back_device_s is about */
} sonde_torch_call;

/* From here on the device worked for this call, in backward. */
typedef struct {
    struct sonde_torch_lane *lane; /* NULL: for nobody */
    uint64_t call;
    int64_t step;
    int64_t t_ns;
    int32_t event;   /* -1: none */
    int8_t device;   /* in use then */
    uint8_t by_host; /* the host's clock counts; an event only checks it */
} sonde_torch_span;

typedef struct {
    int64_t begin_ns, inner_ns;
    int64_t end_ns; /* as an observer saw it; 0: none did */
    int by_engine;  /* seen where the engine runs it; else by an observer */
    struct sonde_torch_lane *lane; /* the lane of the call that it belongs to; NULL: none */
    uint64_t call;
} sonde_torch_node;

typedef struct sonde_torch_lane {
    struct sonde_torch_lane *next;
    uint32_t epoch;        /* atomic: of the last tracer that used it */
    uint32_t ended;        /* atomic: its thread is gone */
    int64_t tid;           /* the kernel's thread id */
    uint64_t torch_tid;    /* torch's thread id */
    sonde_torch_call *calls;
    uint64_t head;         /* atomic: calls so far */
    uint64_t settled;      /* atomic: calls that have rows */
    uint64_t open;         /* the innermost call in progress, or NONE */
    uint32_t passing;      /* calls in progress that are not recorded */
    uint32_t running;      /* backward passes in progress that were begun here */
    uint64_t sequence;     /* the last of autograd's numbers that was seen */
    sonde_torch_node nodes[SONDE_TORCH_DEEP];
    uint32_t nodes_n;
    const void *evaluated;  /* the node that the engine runs here, or NULL */
    struct sonde_torch_lane *last_lane; /* the owner of the previous node */
    uint64_t last_call;
    sonde_torch_span *spans;
    uint64_t spans_head;   /* atomic */
    uint64_t spans_settled; /* atomic */
    uint32_t measured_n;   /* counts calls and nodes: one in MEASURE_EVERY is measured */
    int32_t event;         /* the last event that a call recorded, … */
    int64_t event_ns;      /* … and when; 0: none */
} sonde_torch_lane;

/* What the hot path reads; one for the process. */
typedef struct {
    uint32_t epoch;        /* 0: nobody traces */
    int on;                /* record calls in this step */
    const uint32_t *allowed; /* the page's switch: 0 is paused */
    int device;            /* what is timed on the device in this step */
    int has_nodes;         /* autograd's nodes are seen in this step */
    int memory_depth;      /* read memory above this depth in this step */
    uint16_t depth;        /* record calls above this depth */
    int64_t step;          /* atomic */
    sonde_torch_lane *lanes; /* atomic; only ever grows */
    uint32_t lanes_n;

    /* Sums of the current step. */
    sonde_torch_lane *lead; /* the lane of the first call of the step */
    sonde_torch_lane *back_lead; /* the lane of its first backward pass */
    int64_t back_since_ns;  /* 0: not in progress */
    int64_t forward_since_ns; /* since when the lead is in a call of the program; 0: it is not */
    const void *first;      /* the module of that call; &sonde_torch: that module is gone */
    int64_t first_ns;
    int64_t forward_ns, backward_ns;
    int64_t owned_ns, unowned_ns; /* atomic: of nodes */
    int64_t direct_ns;      /* atomic: our own work, as measured */
    uint32_t calls, lost;
    uint32_t models;        /* calls of models by the program, in the lead */
    uint32_t nodes;         /* atomic */
    int64_t begins[SONDE_TORCH_BEGINS]; /* when backward passes began */
    uint32_t begins_n, first_begins_n; /* now, and at the first call of a model */
    int had_backward;
    int has_grad, is_training; /* gradients were on, and the model was in training, at its first call */
    int has_batch;          /* a loader has given a batch since the program last called a model */
    int is_evaluating;      /* the last step ended where a model was called again without gradients */
    uint32_t runs;          /* backward passes in progress */
    int roots;              /* may a call of the first module end the step? 0 no, 1 yes, 2 without grad */

    /* Torch's functions, or NULL. */
    uint64_t (*sequence)(void);
    int (*graph_task)(void);
    uint64_t (*thread_id)(void);

    uint32_t leave; /* atomic, and what the writer's thread sleeps on */
} sonde_torch_state;

extern sonde_torch_state sonde_torch;

/* Return the lane of this thread; NULL if there is no room. Any thread, with or without the GIL. */
sonde_torch_lane *sonde_torch_here(void);
int sonde_torch_need_calls(sonde_torch_lane *lane); /* get its memory for calls: 0 or -errno */
void sonde_torch_hurry(void); /* have rows made now; any thread */

/* What this thread works for. */
typedef struct {
    int64_t step;    /* -1: not known */
    uint32_t module; /* text id; 0: none, or not recorded */
} sonde_torch_now;
sonde_torch_now sonde_torch_find_now(void); /* any thread, with or without the GIL */

static inline sonde_torch_call *sonde_torch_at(const sonde_torch_lane *lane, uint64_t call)
{
    return &lane->calls[call & (SONDE_TORCH_CALLS - 1)];
}

static inline int sonde_torch_in_backward(const sonde_torch_lane *lane)
{
    return lane->nodes_n > 0 || (sonde_torch.graph_task != NULL && sonde_torch.graph_task() != -1);
}

int sonde_in_closure(void); /* is this thread in a closure that the program gave an optimizer? closure.c */

/* ---- autograd's nodes: observer.c, nodes.c ------------------------------------------ */

void sonde_torch_see_nodes(int on, int events); /* in this step or not; with device events */
void sonde_torch_close_spans(sonde_torch_lane *own); /* a backward pass of this lane's thread is over */

/* ---- events of a device: device.c --------------------------------------------------- */

int32_t sonde_torch_event(void);                        /* record one now; -1: none */
int32_t sonde_torch_event_near(sonde_torch_lane *lane); /* record one, or use the one of a moment ago */
void sonde_torch_event_free(int32_t event);
int sonde_torch_event_done(int32_t event);              /* 1, 0, or -1 if it failed */
double sonde_torch_event_span(int32_t begin, int32_t end); /* in seconds; below 0: not known */
int8_t sonde_torch_event_device(int32_t event);
int8_t sonde_torch_device_now(void); /* the one in use; -1: none */
uint32_t sonde_torch_events(void); /* how many were recorded since the last call */
void sonde_torch_device_enter(void); /* in the writer's thread, before it reads events */

/* ---- does the device keep up with the host? device_pace.c ----------------------------- */

/* Return the directions in which each module took as long on the device as on the host, when that
 * was last compared. */
int sonde_torch_keeps_pace(void);
/* Is this one of the parts without events that is checked? One in 16 is; a hash chooses, or some
 * would never be chosen. */
static inline int sonde_torch_is_checked(uint64_t number)
{
    uint32_t bits = (uint32_t)number * UINT32_C(0x9E3779B1);
    return ((bits ^ bits >> 15) * UINT32_C(0x85EBCA77)) >> 28 == 0;
}

/* Begin and end a backward pass; with the GIL. The first returns its number, or -1. */
int64_t sonde_torch_pass_begin(int64_t begin_ns);
void sonde_torch_pass_end(int64_t number);

/* For the writer's thread. Compare the times of a module in a step with all events; and say that
 * there are no more up to this step. */
void sonde_torch_compare(int way, int64_t step, int8_t device, double device_s, int64_t host_ns);
void sonde_torch_conclude(int way, int64_t step);
/* Do both times of a part, or of the whole, agree in a step without all events? If not, the pace is
 * lost; for a part only at the second difference. */
int sonde_torch_check(int way, int64_t step, int is_whole, double device_s, int64_t host_ns);
void sonde_torch_check_passes(void);
int sonde_torch_awaits_pass(int64_t step); /* is one up to this step unsettled? */
int8_t sonde_torch_kept_up_in(int64_t step);       /* the device that kept up in it; -1: none */
void sonde_torch_refuse(int64_t step);        /* no device kept up in this step */
void sonde_torch_pace_start(void);
void sonde_torch_pace_stop(void);

/* ---- rows: rows.c ------------------------------------------------------------------- */

/* A row of python.torch_trace. */
#define SONDE_TORCH_TRACE "qIttddddqddtqHI??t"
typedef struct {
    int64_t step;
    uint32_t seq, module, stage;
    double allocated, max_allocated, cached, duration;
    int64_t t_ns;
    double device_duration, self_duration;
    uint32_t device;
    int64_t thread;
    uint16_t depth;
    uint32_t call;
    uint8_t raised, timed;
    uint32_t shapes;
} sonde_torch_row;

_Static_assert(sizeof(sonde_torch_row) == 112, "torch_trace layout");

enum {
    SONDE_NULL_ALLOCATED = 1,
    SONDE_NULL_MAX = 2,
    SONDE_NULL_CACHED = 4,
    SONDE_NULL_DEVICE_S = 8,
    SONDE_NULL_DEVICE = 16,
    SONDE_NULL_SHAPES = 32,
    SONDE_NULL_ALL = 63,
};

typedef struct {
    sonde_ring_handle ring;
    uint32_t stages[3];  /* text ids: forward, recompute, backward */
    uint32_t devices[64]; /* text ids of cuda:0, … */
} sonde_torch_texts;

/* rows.c */
void sonde_torch_rows_begin(const sonde_torch_texts *texts);
void sonde_torch_rows_write(int is_last); /* those that are due, or all */

/* row_thread.c */
int sonde_torch_rows_start(const sonde_torch_texts *texts);
void sonde_torch_rows_stop(void); /* writes what is left; without the GIL */

extern PyMethodDef sonde_observer_methods[], sonde_step_plan_methods[], sonde_device_methods[];
extern PyMethodDef sonde_op_places_methods[];
extern PyMethodDef sonde_cuda_calls_methods[], sonde_operators_methods[], sonde_lane_methods[], sonde_module_call_methods[];
extern PyTypeObject sonde_TorchGradientTimeType, sonde_TorchGradientTimesType;
extern PyTypeObject sonde_TorchTracerType, sonde_TorchEngineType;

#endif
