/* Which steps are recorded, and how.
 *
 * This depends on the step's number alone, so that the ranks of a job choose the same steps
 * without communicating. There is no rhythm in it, because a program with a rhythm (a log line
 * every 20 steps) would always be seen at the same beat. What a lower level records is part of
 * what a higher one records, and baseline steps are the same on all levels: ranks on different
 * levels differ only in how much they record. Each rank then measures what its own recording
 * adds.
 */
#include "torch/step_end.h"

enum { WARM = 10 };           /* the first steps are unlike the others: nothing is compared with them */
enum { BASELINE_EVERY = 20 }; /* one step in this many is not recorded, to see what recording costs */

/* Return bits that look random but are the same everywhere. */
static uint32_t mix(uint64_t number)
{
    uint32_t bits = (uint32_t)(number + 1) * UINT32_C(0x9E3779B1);
    bits = (bits ^ bits >> 15) * UINT32_C(0x85EBCA77);
    return bits ^ bits >> 13;
}

/* Choose one step in 2^(last - first): of every two neighbours at each size, one goes on. */
static int is_chosen(uint64_t step, uint32_t first, uint32_t last)
{
    for (uint32_t size = first; size < last; size++)
        if (((step >> size) & 1) != (mix((step >> (size + 1)) + size) & 1))
            return 0;
    return 1;
}

int sonde_torch_choose(int64_t number, const sonde_torch_level *level)
{
    uint64_t step = (uint64_t)number;
    if (level->baseline && step >= WARM &&
        step % BASELINE_EVERY == mix(step / BASELINE_EVERY) % BASELINE_EVERY)
        return SONDE_PLAN_BASELINE;
    if (level->every > 1) {
        uint64_t rest = step % level->every;
        step /= level->every;
        if (rest != mix(step) % level->every)
            return SONDE_PLAN_OFF;
    }
    if (!is_chosen(step, 0, level->steps))
        return SONDE_PLAN_OFF;
    return is_chosen(step, level->steps, level->steps + level->detail) ? SONDE_PLAN_FULL : SONDE_PLAN_BARE;
}

/* torch_plan(step, baseline, every, steps, detail) -> which of the plans of budget_levels.py. */
static PyObject *torch_plan(PyObject *Py_UNUSED(module), PyObject *args)
{
    long long step;
    sonde_torch_level level;
    if (!PyArg_ParseTuple(args, "LpIII", &step, &level.baseline, &level.every, &level.steps, &level.detail))
        return NULL;
    return PyLong_FromLong(sonde_torch_choose(step, &level));
}

PyMethodDef sonde_step_plan_methods[] = {
    {"torch_plan", torch_plan, METH_VARARGS,
     "torch_plan(step, baseline, every, steps, detail): return which plan of budget_levels.py a step has."},
    {NULL, NULL, 0, NULL},
};
