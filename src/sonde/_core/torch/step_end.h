/* What the files share that run at the end of every step. Everything here needs the GIL. */
#ifndef SONDE_TORCH_STEP_END_H
#define SONDE_TORCH_STEP_END_H

#include "torch/module_call.h"

/* ---- steps: steps.c ------------------------------------------------------------------- */

typedef struct {
    PyObject_HEAD
    long long number, begin_ns, end_ns;
    PyObject *kind; /* a str: what ended it */
} sonde_Step;

typedef struct {
    PyObject_HEAD
    long long number;   /* of the current step */
    long long begin_ns; /* 0: no step has ended yet */
    PyObject *last;     /* a str: what ended the last one */
    char whole;         /* a capture wants all steps to come recorded, whatever it costs */
    char profiled;      /* so does sonde.profiler */
    PyObject *listeners; /* a tuple */
    long long ignored, most_ignored; /* other ends: since the user's last, and the most between two */
} sonde_Steps;

/* End the current step. Returns 1; 0: it is not over, or nobody wants to know; -1: a listener
 * raised. `number`, if not NULL, is set to the number of that step. */
int sonde_steps_end(sonde_Steps *steps, PyObject *kind, long long *number);

/* Is `kind` this word? */
static inline int sonde_step_is(PyObject *kind, const char *word)
{
    return PyUnicode_Check(kind) && PyUnicode_CompareWithASCIIString(kind, word) == 0;
}

/* ---- the program's loop: loop.c ---------------------------------------------------------- */

#define SONDE_TORCH_DONE 1000 /* steps of optimizers in one step, each with a row */

typedef struct {
    PyObject_HEAD
    PyObject *host, *text;
    sonde_Steps *steps;
    PyObject *kind;  /* what the lead ends a step with */
    PyObject *other; /* other(optimizer): called when one that is not the lead has made a step */
    PyObject *lead;  /* a weak reference, or NULL */
    PyObject *since; /* a set: ids of those that made a step since the lead did */
    int64_t spent_ns; /* in this step; whoever reads it sets it to 0 */
    uint32_t done_n;
    struct {
        int64_t begin_ns, end_ns, own_ns;
        uint32_t name; /* text id */
    } done[SONDE_TORCH_DONE];
} sonde_TorchOptimizers;

typedef struct {
    PyObject_HEAD
    vectorcallfunc call;
    PyObject *original;
    PyObject *meet; /* meet(iterator): called when another one than the last gives a batch */
    PyObject *last; /* a weak reference to the last iterator, or NULL */
    int64_t spent_ns; /* in this step; whoever reads it sets it to 0 */
    int64_t first_ns; /* when the first batch was asked for */
    int64_t last_ns;  /* when the last batch of this step came; likewise */
} sonde_TorchNext;

/* ---- what optimizers spend themselves: closure.c --------------------------------------------- */

void sonde_optimizer_begin(const void *optimizer);
/* Returns when it began its step, or 0 if we did not see that; `own_ns` is its time without closures
 * and without optimizers inside it. */
int64_t sonde_optimizer_end(const void *optimizer, int64_t now_ns, int64_t *own_ns);
/* Return the arguments of `step` as (args, kwargs) with a closure that is timed; NULL: there is none. */
PyObject *sonde_time_closure(PyObject *optimizer, PyObject *args, PyObject *kwargs);

/* Was the source switched off for which this object works? -1 with an exception. */
int sonde_host_failed(PyObject *host);

/* ---- memory: memory.c ---------------------------------------------------------------------- */

/* Read the memory of the process in MB. Returns 0, or -1 if the kernel does not tell. */
int sonde_torch_memory_read(PyObject *memory, float values[3]);

/* Write the rows of a step that has just ended, unless the last ones are from a moment ago.
 * Returns how long that took, 0 if it was not due, -1 with an exception. */
int64_t sonde_torch_memory_at(PyObject *memory, long long step);

extern PyTypeObject sonde_StepType, sonde_StepsType, sonde_TorchOptimizersType, sonde_TorchNextType,
    sonde_TorchMemoryType, sonde_TorchStepEndType;

/* ---- which steps are recorded: step_plan.c --------------------------------------------------- */

enum { SONDE_PLAN_BASELINE, SONDE_PLAN_OFF, SONDE_PLAN_BARE, SONDE_PLAN_FULL, SONDE_PLAN_WHOLE, SONDE_PLANS };

/* One step in `every`, one in 2^steps of those, detail in one of 2^detail of those. */
typedef struct {
    int baseline; /* are some steps left out, to compare the others with? */
    uint32_t every, steps, detail;
} sonde_torch_level;

int sonde_torch_choose(int64_t step, const sonde_torch_level *level);

/* ---- the end of a step: step_end.c, and its rows: step_rows.c --------------------------------- */

#define SONDE_STEP_END_BATCH 32 /* the most steps that are judged at once */
#define SONDE_TORCH_STEP "qqqqqqqqqt?IId?IIq" /* a row of python.torch_step */

typedef struct {
    long long step;
    int64_t duration_ns, spent_ns;
    PyObject *plan;
} sonde_step_end_noted;

typedef struct {
    PyObject_HEAD
    vectorcallfunc call;
    PyObject *host, *text, *memory;
    sonde_TorchTracer *tracer;
    sonde_Steps *steps;
    sonde_TorchOptimizers *optimizers;
    PyObject *loaders;               /* a TorchNext, or None */
    PyObject *emit_step, *emit_trace; /* writers */
    PyObject *look;                  /* look(): called now and then, before a step begins */
    PyObject *describe;              /* describe(): called when there are new modules */
    PyObject *judge;                 /* judge(noted, end_ns, rested_ns): called when these steps are over */
    PyObject *gradient_times;        /* gradient_times(step, begins): finds backward by them; or None */
    uint32_t stage;                  /* text id of "step" */
    sonde_torch_level level;
    PyObject *plans[SONDE_PLANS];
    sonde_torch_wish wishes[SONDE_PLANS];
    uint8_t details[SONDE_PLANS];
    int plan;     /* of the current step */
    int observes; /* nodes of autograd are seen in steps with detail */
    int device;   /* 0: no device is timed; else ALTERNATELY, or both directions at once */
    int side;     /* the direction to be timed next */
    unsigned unwatched[3]; /* by direction: steps since it had all its events */
    unsigned batch;   /* steps that are judged at once */
    int64_t share_ns; /* the time of the last judging, for each of the steps until the next */
    int64_t rest_ns;  /* until then no step is noted: see REST */
    int64_t rested_ns, rested_n; /* how long those took, and how many they were */
    int64_t cpu_ns, cpu_thread; /* CPU time of the thread that ended the last step, then */
    int64_t noted_ns;
    unsigned noted_n;
    sonde_step_end_noted noted[SONDE_STEP_END_BATCH];
} sonde_TorchStepEnd;

/* Write the row of a step. Returns when the step began, or -1 with an exception. */
int64_t sonde_step_end_write_step(sonde_TorchStepEnd *self, const sonde_Step *step,
                              const sonde_torch_sums *sums, int on);

/* Write what optimizers did, after the modules' rows, of which there are fewer than `seq`.
 * Returns 0, or -1 with an exception. */
int sonde_step_end_write_optimizers(sonde_TorchStepEnd *self, long long step, int on, uint32_t seq);

#endif
