/* The rows that every step has: the step itself, and what optimizers did in it. */
#include "torch/step_end.h"
#include "kernel/filter.h"
#include "kernel/thread.h"

#include <string.h>
#include <time.h>

typedef struct {
    int64_t step, t_ns, dur_ns, input_wait_ns, host_to_device_ns, forward_ns, backward_ns, optimizer_ns,
        other_ns;
    uint32_t ended_by;
    uint8_t unrecorded;
    uint32_t modules, lost;
    double owned_pct;
    uint8_t training;
    uint32_t calls, backward_passes;
    int64_t cpu_ns;
} step_row;

_Static_assert(sizeof(step_row) == 120, "torch_step layout");

#define NULL_OWNED 1u
#define NULL_CPU 2u
/* How old an answer may be: with stacks, the native thread has a newer one, and steps may be shorter than a look. */
#define FILTER_NS 10000000

static int append(PyObject *writer, const void *row, size_t bytes, uint32_t nulls)
{
    uint64_t words[SONDE_MAX_ROW_BYTES / 8];
    memcpy(words, row, bytes);
    return sonde_writer_append(writer, words, nulls);
}

static int64_t take(int64_t *value)
{
    int64_t taken = *value;
    *value = 0;
    return taken;
}

static int64_t find_thread(void)
{
    const sonde_torch_lane *lane = sonde_torch.epoch == 0 ? NULL : sonde_torch_here();
    return lane != NULL ? lane->tid : (int64_t)sonde_find_tid();
}

/* Return the CPU time that this thread has used since the last step; -1 if another thread ended that, or if a filter
 * that the program has installed may end whoever asks. */
static int64_t take_cpu(sonde_TorchStepEnd *self)
{
    struct timespec now;
    if (sonde_has_later_filter_within(FILTER_NS) || clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now) != 0)
        return -1;
    int64_t thread = find_thread(), cpu_ns = (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
    int64_t used_ns = thread == self->cpu_thread ? cpu_ns - self->cpu_ns : -1;
    self->cpu_thread = thread;
    self->cpu_ns = cpu_ns;
    return used_ns;
}

int64_t sonde_step_end_write_step(sonde_TorchStepEnd *self, const sonde_Step *step,
                              const sonde_torch_sums *sums, int on)
{
    int64_t input_ns = 0, batch_ns = 0, begin_ns = sums->first_ns;
    if (self->loaders != Py_None) {
        sonde_TorchNext *loaders = (sonde_TorchNext *)self->loaders;
        input_ns = take(&loaders->spent_ns);
        batch_ns = take(&loaders->last_ns);
        if (loaders->first_ns != 0 && loaders->first_ns < begin_ns)
            begin_ns = loaders->first_ns;
    }
    begin_ns = step->begin_ns != 0 ? step->begin_ns : begin_ns != 0 ? begin_ns : step->end_ns;
    int64_t move_ns = begin_ns <= batch_ns && batch_ns <= sums->first_ns ? sums->first_ns - batch_ns : 0;
    int64_t whole_ns = step->end_ns - begin_ns;
    int64_t left_ns = whole_ns - input_ns - move_ns - sums->forward_ns - sums->backward_ns;
    int64_t optimizer_ns = take(&self->optimizers->spent_ns);
    int is_training = sums->had_backward || optimizer_ns > 0;
    /* Optimizers in other threads count, models there do not. */
    optimizer_ns = optimizer_ns < left_ns ? optimizer_ns : left_ns;
    optimizer_ns = optimizer_ns > 0 ? optimizer_ns : 0;
    int64_t other_ns = left_ns > optimizer_ns ? left_ns - optimizer_ns : 0;
    int64_t nodes_ns = sums->owned_ns + sums->unowned_ns, kind = sonde_text_id(self->text, step->kind);
    if (kind < 0)
        return -1;
    if (kind == 0)
        sonde_writer_lose_text(self->emit_step);
    step_row row;
    memset(&row, 0, sizeof row); /* also clears what lies between the columns */
    row.step = step->number;
    row.t_ns = begin_ns;
    row.dur_ns = whole_ns;
    row.input_wait_ns = input_ns;
    row.host_to_device_ns = move_ns;
    row.forward_ns = sums->forward_ns;
    row.backward_ns = sums->backward_ns;
    row.optimizer_ns = optimizer_ns;
    row.other_ns = other_ns;
    row.ended_by = (uint32_t)kind;
    row.unrecorded = !on;
    row.modules = sums->calls;
    row.lost = sums->lost;
    row.owned_pct = nodes_ns == 0 ? 0 : 100.0 * (double)sums->owned_ns / (double)nodes_ns;
    row.training = (uint8_t)is_training;
    row.calls = sums->models;
    row.backward_passes = sums->passes;
    int64_t cpu_ns = take_cpu(self);
    row.cpu_ns = cpu_ns < 0 ? 0 : cpu_ns;
    uint32_t nulls = (nodes_ns == 0 ? NULL_OWNED : 0) | (cpu_ns < 0 ? NULL_CPU : 0);
    return append(self->emit_step, &row, sizeof row, nulls) < 0 ? -1 : begin_ns;
}

int sonde_step_end_write_optimizers(sonde_TorchStepEnd *self, long long step, int on, uint32_t seq)
{
    uint32_t done_n = on ? self->optimizers->done_n : 0;
    self->optimizers->done_n = 0;
    int64_t thread = done_n == 0 ? 0 : find_thread();
    for (uint32_t i = 0; i < done_n; i++) {
        sonde_torch_row row;
        memset(&row, 0, sizeof row);
        row.step = step;
        row.seq = seq + i;
        row.module = self->optimizers->done[i].name;
        row.stage = self->stage;
        if (row.module == 0)
            sonde_writer_lose_text(self->emit_trace);
        row.t_ns = self->optimizers->done[i].begin_ns;
        row.duration = (double)(self->optimizers->done[i].end_ns - row.t_ns) / 1e9;
        row.self_duration = (double)self->optimizers->done[i].own_ns / 1e9;
        row.thread = thread;
        row.call = i;
        uint32_t nulls = SONDE_NULL_ALL;
        float memory[3];
        if (sonde_torch_recent_memory(self->tracer, sonde_clock_ns(), memory) == 0) {
            row.allocated = memory[0];
            row.max_allocated = memory[1];
            row.cached = memory[2];
            nulls &= ~(uint32_t)(SONDE_NULL_ALLOCATED | SONDE_NULL_MAX | SONDE_NULL_CACHED);
        }
        if (append(self->emit_trace, &row, sizeof row, nulls) < 0)
            return -1;
    }
    return 0;
}
