/* Puts the native frames of running threads into their samples: see native_frames.h.
 *
 * The thread stands still only while its Python frames and the top of its stack are copied. The way from
 * function to function is then found in the copy, by what another process has said about that code.
 * Where it does not end at Python's interpreter, nothing of it is believed.
 */
#include "stacks/native_frames.h"
#include "kernel/thread.h"
#include "kernel/thread_place.h"

enum { PATIENCE = 20, SELDOM = 8 };

static sonde_stack_bytes copy; /* only one thread samples */

int sonde_native_open(sonde_native_frames *native, PyObject *map)
{
    sonde_known_code_map code = {0};
    int status = sonde_code_map_open(&code, map);
    if (status == 0 && (status = sonde_place_prepare()) < 0)
        sonde_code_map_close(&code);
    if (status == 0)
        *native = (sonde_native_frames){.code = code};
    return status;
}

void sonde_native_close(sonde_native_frames *native)
{
    if (native->code.table == NULL)
        return;
    sonde_place_rest();
    sonde_code_map_close(&native->code);
}

/* ---- copying --------------------------------------------------------------------------------- */

static void keep_place(const sonde_thread_place *place)
{
    copy.pc = place->pc;
    copy.sp = place->sp;
    copy.fp = place->fp;
    copy.link = place->link;
}

/* Has the thread a processor now? One that only waits for a processor may be inside a call of the kernel, which
 * a signal would interrupt. */
static int is_on_cpu(uint32_t tid)
{
    int64_t first_ns = sonde_thread_cpu(tid);
    return sonde_thread_cpu(tid) != first_ns;
}

int sonde_native_hold(sonde_native_frames *native, sonde_sampled_thread *thread)
{
    if (native->code.table == NULL || thread->cpu_ns < 0)
        return 0;
    /* A thread that never answers has blocked the signal: it is asked only now and then. */
    if (thread->unanswered >= PATIENCE && thread->unanswered++ % SELDOM != 0)
        return 0;
    if (sonde_wait_find(thread->tid).kind != SONDE_WAIT_NONE)
        return 0;
    sonde_thread_place place;
    int is_on = is_on_cpu(thread->tid);
    if (!is_on || sonde_place_ask(thread->tid, SONDE_ANSWER_NS, &place) < 0) {
        thread->unanswered += (uint32_t)is_on;
        native->lost++;
        return 0;
    }
    keep_place(&place);
    thread->unanswered = 0;
    return 1;
}

int sonde_native_release(sonde_native_frames *native)
{
    copy.bytes = 0;
    while (sonde_stack_bytes_extend(&copy))
        ; /* page by page: where the stack ends is not known */
    int is_one = sonde_place_let_go();
    native->lost += !is_one;
    return is_one;
}

uint32_t sonde_native_extend(sonde_native_frames *native, sonde_nodes_handle *nodes, uint32_t node)
{
    sonde_native_path path;
    sonde_code_map_renew(&native->code);
    sonde_native_walk(&native->code, &copy, 0, &path);
    if (path.end == SONDE_WALK_UNKNOWN)
        sonde_machine_ask(native->code.table, SONDE_ASKED_BY_SAMPLER, &copy, path.unknown);
    if (path.end != SONDE_WALK_PYTHON) {
        native->lost++;
        return node;
    }
    native->found++;
    uint32_t below = sonde_native_put(nodes, node, &path, 0);
    return below == 0 ? node : below; /* it is full: the Python function has the time */
}
